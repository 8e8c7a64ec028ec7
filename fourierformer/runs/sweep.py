"""What all sweeps have in common, whichever launcher runs the jobs: a record of each, one table at the end, one Ctrl-C.

Jobs run in this process (basic), in workers (joblib), or in processes on other machines (submitit). Each writes
`<record>/<number>.json` to a folder that all share, so nothing depends on what a launcher returns or prints. A job does
not begin when there is a file `stop` in the folder.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode

from fourierformer.errors import Interrupted, SetupError
from fourierformer.files import atomic_write_text, json_object
from fourierformer.training.signals import stop_signals


class SweepRecord(Callback):
    """A Hydra callback that keeps the folder of the sweep, in the process that runs it."""

    current: Path | None = None

    def on_multirun_start(self, config, **_):
        SweepRecord.current = Path(config.hydra.sweep.dir)


def in_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


class Job:
    """This job's file in the record of its sweep. A job whose process is killed leaves one without an exit code."""

    def __init__(self):
        hydra = HydraConfig.get()
        self.record = Path(hydra.sweep.dir)
        self.number = hydra.job.num
        self.facts = {
            "number": self.number,
            "overrides": list(hydra.overrides.task),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self.label = _label(self.facts)
        self._write()

    def write(self, **facts) -> None:
        self.facts |= facts
        self._write()

    def finish(self, code: int, error: str | None) -> None:
        """Writes the exit code. SetupError where that is impossible: a sweep without a result must not end with 0."""
        self.facts |= {"exit_code": code, "error": error}
        try:
            self._replace()
        except OSError as full:
            raise SetupError(
                f"{self.label}: its result (exit code {code}) could not be written to {self.record} ({full.strerror}). "
                "Make room or fix the permissions; the same command goes on."
            ) from full

    def stop_asked(self) -> bool:
        return (self.record / "stop").exists()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk stops the run itself, with a better message
            self._replace()

    def _replace(self) -> None:
        atomic_write_text(self.record / f"{self.number:05d}.json", json.dumps(self.facts))


def _label(facts: dict, common: frozenset[str] = frozenset()) -> str:
    own = [override for override in facts["overrides"] if override not in common]
    return f"job {facts['number']} ({', '.join(own)})"


def read_record(record: Path) -> list[dict]:
    return [_read_job(path) for path in sorted(record.glob("[0-9]*.json"))]


def _read_job(path: Path) -> dict:
    """The facts in a job's file; of one that is damaged (a full disk leaves such files) a job without a result."""
    unknown = {"number": path.stem, "overrides": [], "pid": 0, "host": "an unknown machine"}
    try:
        job = json_object(path)
    except (OSError, ValueError):
        return unknown
    known = isinstance(job.get("overrides"), list) and isinstance(job.get("pid"), int)
    return unknown | job if known else unknown


class StopSweep:
    """Handles signals in the process that waits for jobs in other processes: passes the signal on to them, begins no
    more, and goes on waiting, so that each can save. (Jobs in this process install their own, see signals.py.)"""

    def __init__(self):
        self.signal_number: int | None = None

    def __enter__(self) -> "StopSweep":
        for number in stop_signals():
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number in stop_signals():  # the exit code is decided: a late Ctrl-C must not change it
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, number: int, frame) -> None:
        again = self.signal_number is not None
        if again and number != signal.SIGINT:
            return  # schedulers and `timeout` send the same request several times
        self.signal_number = self.signal_number or number
        record = SweepRecord.current
        # SIGTERM also for Ctrl-C, which a terminal sends to all of them itself: a second Ctrl-C would abort them
        if record is None or not _signal_others(record, signal.SIGKILL if again else signal.SIGTERM) or again:
            raise Interrupted(number)
        print("\nstopping: running jobs save first; press Ctrl-C again to abort at once", file=sys.stderr)


def _signal_others(record: Path, number: int) -> bool:
    """Sends a signal to the sweep's unfinished jobs in other processes of this machine. Returns whether there are
    any."""
    with contextlib.suppress(OSError):
        (record / "stop").touch()
    unfinished = [job for job in read_record(record) if "exit_code" not in job and job["host"] == socket.gethostname()]
    others = [job["pid"] for job in unfinished if job["pid"] != os.getpid()]
    for pid in others:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return bool(others)


def summarise(record: Path) -> int:
    """Prints the table of the sweep's runs, writes their report, and prints a line for each job that failed. Returns
    the first exit code that is not 0."""
    jobs = read_record(record)
    runs = [Path(job["run"]) for job in jobs if job.get("run")]
    runs = [run for run in dict.fromkeys(runs) if run.is_dir()]
    if runs:
        show(runs, report=Path(os.path.commonpath([run.parent for run in runs])) / "report.html")
    plans = [job["plan"] for job in jobs if "plan" in job]
    if plans:
        print(_total(plans))
    failed = [job for job in jobs if job.get("exit_code") != 0]
    common = frozenset.intersection(*(frozenset(job["overrides"]) for job in jobs)) if len(jobs) > 1 else frozenset()
    for job in failed:
        error = job.get("error", f"ended without a result: killed, out of memory, or still running on {job['host']}")
        print(f"{_label(job, common)}: {error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(jobs)} jobs failed; the same command tries them again", file=sys.stderr)
    return next((job.get("exit_code", 1) for job in failed), 0)


def _total(plans: list[dict]) -> str:
    """The line about the cost of a whole sweep, without the jobs whose plan failed."""
    from fourierformer.runs.cost import hours_text

    hours, device = sum(plan["hours"] for plan in plans), plans[0]["device"]
    left = sum(plan["hours"] > 0 for plan in plans)
    cost = f"{left} of {len(plans)} runs are to be done: {hours_text(hours, device)} at this machine's time per step"
    return f"\n{cost}; data preparation and evaluations come on top"


def show(runs: list[Path], report: Path) -> None:
    """Prints the table of these runs, and writes the page with their curves."""
    from fourierformer.report import write_report
    from fourierformer.results import collect, comparison, render_text

    collected = collect(runs)
    print(f"\n{render_text(comparison(collected), colour=sys.stdout.isatty()).rstrip()}")
    try:
        print(f"\nreport: {write_report(collected, report)}")
    except OSError as error:  # the runs are done, whatever becomes of their page
        print(f"\nthe page {report} could not be written ({error.strerror}): scripts/report.py makes it again")

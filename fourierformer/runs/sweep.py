"""A sweep as one thing, whichever launcher runs its jobs: a record of each job, one table at the end, one Ctrl-C.

Jobs may run in this process (basic), in workers (joblib), or in processes far away (submitit). They share a folder:
each job keeps `<record>/<number>.json` there, so nothing depends on what a launcher passes back or prints. A file
`stop` in it keeps jobs that have not begun from beginning.
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

from fourierformer.errors import Interrupted
from fourierformer.files import atomic_write_text
from fourierformer.training.signals import SIGNALS


class SweepRecord(Callback):
    """Hydra callback in the process that runs the sweep: remembers its folder."""

    current: Path | None = None

    def on_multirun_start(self, config, **_):
        SweepRecord.current = Path(config.hydra.sweep.dir)


def in_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


class Job:
    """This job's line in the record of its sweep. A job that dies leaves a line without an exit code."""

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

    def stop_asked(self) -> bool:
        return (self.record / "stop").exists()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk stops the run itself, with a better message
            atomic_write_text(self.record / f"{self.number:05d}.json", json.dumps(self.facts))


def _label(facts: dict, common: frozenset[str] = frozenset()) -> str:
    own = [override for override in facts["overrides"] if override not in common]
    return f"job {facts['number']} ({', '.join(own)})"


def read_record(record: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(record.glob("[0-9]*.json"))]


class StopSweep:
    """Signal handler of the sweeping process while it waits for jobs elsewhere: hands the signal to them, begins no
    more, and goes on waiting, so that each can save. (Jobs in this process install their own, see signals.py.)"""

    def __init__(self):
        self.signal_number: int | None = None

    def __enter__(self) -> "StopSweep":
        for number in SIGNALS:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number in SIGNALS:  # how the process ends is decided: a late Ctrl-C must not change it
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, number: int, frame) -> None:
        again = self.signal_number is not None
        if again and number != signal.SIGINT:
            return  # schedulers and `timeout` send the same request several times
        self.signal_number = self.signal_number or number
        record = SweepRecord.current
        # SIGTERM whatever came here: a terminal sends Ctrl-C to all of them itself, and a second one would abort them
        if record is None or not _tell_others(record, signal.SIGKILL if again else signal.SIGTERM) or again:
            raise Interrupted(number)
        print("\nstopping: running jobs save first; press Ctrl-C again to abort at once", file=sys.stderr)


def _tell_others(record: Path, number: int) -> bool:
    """Sends a signal to the sweep's unfinished jobs in other processes of this machine; whether there were any."""
    with contextlib.suppress(OSError):
        (record / "stop").touch()
    unfinished = [job for job in read_record(record) if "exit_code" not in job and job["host"] == socket.gethostname()]
    others = [job["pid"] for job in unfinished if job["pid"] != os.getpid()]
    for pid in others:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return bool(others)


def summarise(record: Path) -> int:
    """Table and report of the sweep's runs, a line for each job that did not end well; the first exit code that is not
    0."""
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
        error = job.get("error", f"left no word: killed, out of memory, or still running on {job['host']}")
        print(f"{_label(job, common)}: {error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(jobs)} jobs did not end well; the same command tries them again", file=sys.stderr)
    return next((job.get("exit_code", 1) for job in failed), 0)


def _total(plans: list[dict]) -> str:
    """What a whole sweep would cost, without the jobs that are named as errors."""
    from fourierformer.runs.cost import hours_text

    hours, device = sum(plan["hours"] for plan in plans), plans[0]["device"]
    left = sum(plan["hours"] > 0 for plan in plans)
    cost = f"{left} of {len(plans)} runs are to be done: {hours_text(hours, device)} by step times of this machine"
    return f"\n{cost}; data preparation and evaluations come on top"


def show(runs: list[Path], report: Path) -> None:
    """The table of these runs on the console, and the page with the curves."""
    from fourierformer.report import write_report
    from fourierformer.results import collect, comparison, render_text

    found = collect(runs)
    print(f"\n{render_text(comparison(found), colour=sys.stdout.isatty()).rstrip()}")
    print(f"\nreport: {write_report(found, report)}")

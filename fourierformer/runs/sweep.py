"""Sweeps under any launcher: a record of each job, one table at the end, one Ctrl-C.

Jobs run in this process (basic), in workers (joblib), or in processes on other machines (submitit). Each writes
`<record>/<number>.json` to a shared folder, independently of the output of a launcher. Its file `jobs.json` has the
names of all jobs, begun or not. With a file `stop` in the folder, no further job begins.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from fourierformer.errors import Interrupted, SetupError, short
from fourierformer.files import atomic_write_text, json_object
from fourierformer.printing import echo
from fourierformer.runs.job_names import Name, config_folder_of, expanded, names, overrides_of
from fourierformer.training.signals import STOPPED, forget_signal, note, noted_signal, stop_signals

NOT_BEGUN = "not begun: the sweep was stopped"
PROGRAM = "FOURIERFORMER_PROGRAM"  # environment variable: the program that the user started, also in processes of jobs


class SweepRecord(Callback):
    """A Hydra callback that keeps the folder of the sweep, in the process that runs it."""

    current: Path | None = None

    def on_multirun_start(self, config, **_):
        SweepRecord.current = Path(config.hydra.sweep.dir)
        # for an unreadable override or an unwritable disk, the sweep or its first run has the message
        with contextlib.suppress(HydraException, OmegaConfBaseException, OSError):
            SweepRecord.current.mkdir(parents=True, exist_ok=True)
            parameters = config.hydra.sweeper.get("params") or {}
            values = expanded([*(f"{k}={v}" for k, v in parameters.items()), *overrides_of(config.hydra)])
            content = {"names": names(values), "values": values}
            atomic_write_text(SweepRecord.current / "jobs.json", json.dumps(content))


def in_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def choices() -> Mapping[str, str | None]:
    """The option of each config group that this command chose: {"attention": "softmax", "debug": None}."""
    return HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}


class Job:
    """This job's file in the record of its sweep. A job whose process is killed leaves one without an exit code."""

    def __init__(self):
        hydra = HydraConfig.get()
        self.record, self.number = Path(hydra.sweep.dir), hydra.job.num
        self.arguments = [*config_folder_of(hydra), *overrides_of(hydra)]
        self.name = _name_of(self.number, self.record, expanded(overrides_of(hydra))[0])
        self.facts = {"number": self.number, "pid": os.getpid(), "host": socket.gethostname()}
        self.facts["prefix"] = self.name.prefix
        self.write()

    def write(self, **facts) -> None:
        self.facts |= facts
        with contextlib.suppress(OSError):  # a full disk stops the run itself, with a better message
            self._replace()

    def finish(self, code: int, error: str | None) -> None:
        """Write the exit code. SetupError where that is impossible: a sweep without a result must not end with 0."""
        self.facts |= {"exit_code": code, "error": error}
        try:
            self._replace()
        except OSError as full:
            problem = f"its result (exit code {code}) could not be written to {self.record} ({full.strerror})"
            way_out = "Make room or fix the permissions; the same command goes on."
            raise SetupError(f"{self.name.prefix}{problem}. {way_out}") from full

    def stop_requested(self) -> bool:
        return (self.record / "stop").exists()

    @contextlib.contextmanager
    def command(self) -> Iterator[None]:
        """A context with the command line of a single run of this job, for meta.json and wandb: otherwise a worker has
        its launcher's command line, and jobs in one process have the sweep's."""
        before = sys.argv
        sys.argv = [os.environ.get(PROGRAM, before[0]), *self.arguments]
        try:
            yield
        finally:
            sys.argv = before

    def _replace(self) -> None:
        atomic_write_text(self.record / f"{self.number:05d}.json", json.dumps(self.facts))


def _name_of(number: int, record: Path, values: dict) -> Name:
    """The name of the job with these values: shuffle() gives them another order here than in the record."""
    record_of_jobs = _read_jobs(record)
    names, of_jobs = _names_in(record_of_jobs), record_of_jobs.get("values")
    if not number < len(names):
        return Name(str(number + 1), "")
    place = of_jobs.index(values) if isinstance(of_jobs, list) and values in of_jobs else number
    _, blank, rest = names[place].label.partition(" ")
    return Name(f"{number + 1}/{len(names)}{blank}{rest}", names[place].differs)


def read_record(record: Path) -> list[dict]:
    """The facts of every job that has begun; for a damaged file (after a full disk) a job without a result."""
    jobs = []
    for path in sorted(record.glob("[0-9]*.json")):
        job: dict = {}
        with contextlib.suppress(OSError, ValueError):
            job = json_object(path)
        pid = job.get("pid")
        known = job if isinstance(pid, int) and pid > 0 else {}  # a signal to 0 or -1 goes to many processes
        jobs.append({"number": int(path.stem), "pid": 0, "host": "an unknown machine"} | known)
    return jobs


def read_names(record: Path) -> list[Name]:
    """The names of all jobs of a sweep; none if they could not be written."""
    return _names_in(_read_jobs(record))


def _names_in(jobs: dict) -> list[Name]:
    try:
        return [Name(*name) for name in jobs["names"]]
    except (KeyError, TypeError):
        return []


def _read_jobs(record: Path) -> dict:
    try:
        return json_object(record / "jobs.json")
    except (OSError, ValueError):
        return {}


def is_empty(record: Path) -> bool:
    """Whether a sweep has no job, begun or not."""
    return not read_record(record) and not read_names(record)


class StopSweep:
    """Signal handler outside of runs: notes the first signal. In a process that waits for jobs in others it forwards
    the signal to them, so that no more begin, and waits until each has saved. (A job in this process installs its own
    handler, see signals.py.)"""

    def __enter__(self) -> "StopSweep":
        for number in stop_signals():
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number in stop_signals():  # a late Ctrl-C must not change the exit code
            signal.signal(number, signal.SIG_IGN)
        forget_signal()

    def _receive(self, number: int, frame) -> None:
        again = noted_signal() is not None
        if again and number != signal.SIGINT:
            return  # schedulers and `timeout` send the same request several times
        # SIGTERM also for Ctrl-C: a terminal sends Ctrl-C to all of them, and a second SIGINT would abort them
        record, way = SweepRecord.current, signal.SIGKILL if again else signal.SIGTERM
        others = record is not None and _signal_others(record, way)
        if others and again:
            raise Interrupted(number)
        note(number, doing="stopping: running jobs save first" if others else "stopping")


@functools.cache
def end_with_parent() -> None:
    """In a worker of joblib: end when the sweep's process was killed, which could not end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.pid,), daemon=True).start()


def _watch(parent: int) -> None:
    """Once the parent is gone, send SIGTERM each second: a run saves and stops, then the worker ends."""
    while True:
        time.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _signal_others(record: Path, number: int) -> bool:
    """Send a signal to the sweep's unfinished jobs in other processes of this machine. Returns whether any exist."""
    with contextlib.suppress(OSError):
        atomic_write_text(record / "stop", "")
    unfinished = [job for job in read_record(record) if "exit_code" not in job and job["host"] == socket.gethostname()]
    others = [job["pid"] for job in unfinished if job["pid"] != os.getpid()]
    for pid in others:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return bool(others)


def summarise(record: Path) -> int:
    """Print the table of the sweep's runs, write their report, and print a line per failed job. Returns the first
    exit code that is not 0."""
    jobs, names = read_record(record), read_names(record)
    runs = [Path(job["run"]) for job in jobs if job.get("run")]
    runs = [run for run in dict.fromkeys(runs) if run.is_dir()]
    if runs:
        above = Path(os.path.commonpath([run.parent for run in runs]))
        show(runs, report=(above if len(runs) > 1 else runs[0]) / "report.html")  # run_dir= of one lies anywhere
    plans = [job["plan"] for job in jobs if "plan" in job]
    if plans:
        echo(_total(plans))
    begun = [job for job in jobs if job.get("error") != NOT_BEGUN]
    failed = [job for job in begun if job.get("exit_code") != 0]
    prefixes = {job["number"]: job.get("prefix") for job in jobs}
    for error, first, count in _distinct_errors(failed):
        others = f"and {count - 1} more: " if count > 1 else ""
        echo(f"{prefixes[first] or Name(str(first + 1)).prefix}{others}{error}", file=sys.stderr)
    not_begun = max(len(names), len(jobs)) - len(begun)
    if plans and failed:
        echo(f"{len(failed)} of {len(begun) + not_begun} jobs would fail: see the lines above", file=sys.stderr)
    elif jobs and (failed or not_begun):
        fix = "fix the errors above, then " if any(job.get("exit_code") == 2 for job in failed) else ""
        counts = _counts(len(begun), failed, not_begun)
        echo(f"{counts}; {fix}the same command goes on with the rest", file=sys.stderr)
    return next((job.get("exit_code", 1) for job in failed), 0)


def _distinct_errors(failed: list[dict]) -> list[tuple[str, int, int]]:
    """(error, number of the first job with it, count of jobs), in the order of the jobs."""
    numbers: dict[str, list[int]] = {}
    for job in failed:
        error = job.get("error", f"ended without a result: killed, out of memory, or still running on {job['host']}")
        numbers.setdefault(error, []).append(job["number"])
    return [(error, jobs[0], len(jobs)) for error, jobs in numbers.items()]


def _counts(begun: int, failed: list[dict], not_begun: int) -> str:
    """'1 of 4 done, 1 failed, 1 stopped, 1 not begun'."""
    stopped = sum(job.get("exit_code") in STOPPED for job in failed)
    others = {"failed": len(failed) - stopped, "stopped": stopped, "not begun": not_begun}
    return f"{begun - len(failed)} of {begun + not_begun} done" + "".join(f", {n} {s}" for s, n in others.items() if n)


def _total(plans: list[dict]) -> str:
    """The line about a whole sweep, without jobs whose plan failed; with its cost if that is known for all jobs."""
    plans = list({plan["directory"]: plan for plan in plans}.values())  # lr=1e-3,0.001 is one run
    left = [plan for plan in plans if not plan["done"]]
    line = f"\n{len(left)} of {len(plans)} runs are to be done"
    if left and all(plan["hours"] is not None for plan in left):
        hours = hours_text(sum(plan["hours"] for plan in left), left[0]["device"])
        line += f": {hours} at this machine's time per step; data preparation and evaluations come on top"
    return line


def hours_text(hours: float, device: str) -> str:
    """'0.1 CPU-minutes' or '120 GPU-hours'."""
    if 0 < hours < 1:
        return f"{60 * hours:.1f} {device}-minutes"
    return f"{hours:,.{1 if hours < 100 else 0}f} {device}-hours"


def show(runs: list[Path], report: Path) -> None:
    """Print the table of these runs, and write the page with their curves unless it is up to date."""
    from fourierformer.results import collect, comparison, render_text

    collected = collect(runs)
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    print(f"\n{render_text(comparison(collected), is_terminal, width).rstrip()}")
    try:
        if not _is_current(report, runs):
            from fourierformer.report import write_report

            write_report(collected, report)
        echo(f"\nreport: {report}")
    except Exception as error:  # no failure of the runs, which are done
        reason = error.strerror if isinstance(error, OSError) else short(error)
        echo(f"\nthe page {report} could not be written ({reason}): scripts/report.py makes it again")


def _is_current(report: Path, runs: list[Path]) -> bool:
    """Whether a page of one run, in its directory, is newer than its sources: drawing it takes seconds."""
    if [report.parent] != runs or not report.is_file():
        return False
    sources = [path for path in report.parent.iterdir() if path.suffix in (".json", ".jsonl", ".yaml")]
    return report.stat().st_mtime >= max(path.stat().st_mtime for path in sources)

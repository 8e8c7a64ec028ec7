"""Show the progress of a sweep from its run directories: python scripts/sweep_status.py [RUNS...] [--json]"""

import json
import socket
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.results import HOW_TO_MAKE_ONE, Run, collect
from fourierformer.results.labels import labels_of_runs
from fourierformer.results.runs import number
from fourierformer.results.tables import duration_text
from fourierformer.runs.console_io import Parser, exit_on_user_error
from fourierformer.runs.directory import process_exists

STALLED_AFTER = 900  # seconds without a sign of life; one comes at most every ten seconds, but a step may take minutes


@dataclass(frozen=True)
class RunProgress:
    """One run: `state` is the state in its status file, or "stalled" for a running one without a sign of life."""

    run: str
    settings: str  # that distinguish it from other runs of its model, after its attention: 'fourier lr=0.002'
    state: str
    step: int | None
    steps: int | None
    seconds_left: float | None  # at the rate so far; None if the run has ended, or has no rate yet
    remark: str

    @property
    def line(self) -> str:
        done = "-" if self.step is None or self.steps is None else f"{self.step:,}/{self.steps:,}"
        left = f"{duration_text(self.seconds_left)} left" if self.seconds_left is not None else ""
        parts = (f"{self.state:11}", f"{done:>17}", f"{left:15}", self.run, self.settings, self.remark)
        return "  ".join(part for part in parts if part).rstrip()


def main() -> None:
    parser = Parser("One line a run: running, stalled, failed or done, and what is left.")
    parser.add_argument("runs", nargs="*", default=["runs"], help="run directories or folders of them (default: runs)")
    parser.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    with exit_on_user_error():
        show(arguments.runs, arguments.json)


def show(roots: list[str], for_programs: bool) -> None:
    now = datetime.now(UTC)
    found = [run for run in collect(roots) if run.state != "set aside"]
    settings = labels_of_runs(found)
    runs = [progress_of(run, now, settings.get(run.path, "")) for run in found]
    if not runs:
        raise SetupError(f"No runs under {', '.join(roots)}. {HOW_TO_MAKE_ONE}")
    if for_programs:
        json.dump([asdict(run) for run in runs], sys.stdout, indent=2)
        echo()
        return
    for run in runs:
        echo(run.line)
    echo(summary_line(runs))


def summary_line(runs: list[RunProgress]) -> str:
    """'2 completed, 1 running; the last running one ends in 1 h 20 min'."""
    counts = Counter(run.state for run in runs)
    text = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    left = [run.seconds_left for run in runs if run.seconds_left is not None]
    return text + (f"; the last running one ends in {duration_text(max(left))}" if left else "")


def progress_of(run: Run, now: datetime, settings: str = "") -> RunProgress:
    """Progress of a run on any machine, from its status file."""
    status, state, remark = run.status, run.state, str(run.status.get("error") or "; ".join(run.problems))
    if state == "running" and (reason := _stalled(status, now)):
        state, remark = "stalled", reason
    at, total, seconds = (number(status.get(key)) for key in ("step", "steps", "seconds"))
    if state == "running" and at == total:
        remark = remark or "measuring"
    has_rate = state == "running" and at > 0 and seconds >= 0 and total > at
    left = seconds / at * (total - at) if has_rate else None
    step, steps = (value if isinstance(value, int) else None for value in (status.get("step"), status.get("steps")))
    return RunProgress(str(run.path), settings, state, step, steps, left, " ".join(remark.split()))


def _stalled(status: dict, now: datetime) -> str:
    """The reason to call a run with the state "running" stalled; empty if there is none."""
    if status.get("host") == socket.gethostname() and not process_exists(status.get("pid")):
        return f"its process {status.get('pid')} is gone: the same command resumes it"
    try:
        silent = (now - datetime.fromisoformat(str(status.get("updated")))).total_seconds()
    except (TypeError, ValueError):
        return "its status has no time"
    if silent > STALLED_AFTER:
        return f"no sign of life for {duration_text(silent)} (on {status.get('host')}, process {status.get('pid')})"
    return ""


if __name__ == "__main__":
    main()

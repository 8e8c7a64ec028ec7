"""How far the runs of a sweep are: from their status files, whoever runs them and wherever."""

import os
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from fourierformer.results.layout import duration_text
from fourierformer.results.runs import Run, number

STALLED_AFTER = 900  # seconds without a sign of life; runs give one at every log, evaluations take minutes


@dataclass(frozen=True)
class Standing:
    """One run: `state` is its own, or stalled: it says running, and nothing does."""

    run: str
    state: str
    step: int | None
    steps: int | None
    seconds_left: float | None  # at the rate so far; None where there is nothing left, or no rate yet
    remark: str

    @property
    def progress(self) -> str:
        return "-" if self.step is None or self.steps is None else f"{self.step:,}/{self.steps:,}"


def standings(runs: Iterable[Run], now: datetime | None = None) -> list[Standing]:
    now = now or datetime.now(UTC)
    return [_standing(run, now) for run in runs]


def summary_line(found: list[Standing]) -> str:
    """'2 completed, 1 running; the last one ends in 1 h 20 min at the earliest'."""
    counts = Counter(standing.state for standing in found)
    text = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    left = [standing.seconds_left for standing in found if standing.seconds_left is not None]
    return text + (f"; the last running one ends in {duration_text(max(left))}" if left else "")


def as_json(found: list[Standing]) -> list[dict]:
    return [asdict(standing) for standing in found]


def _standing(run: Run, now: datetime) -> Standing:
    status, state, remark = run.status, run.state, str(run.status.get("error") or "; ".join(run.problems))
    if state == "running":
        reason = _stalled(status, now)
        state, remark = ("stalled", reason) if reason else (state, remark)
    step, steps = status.get("step"), status.get("steps")
    left = _seconds_left(status) if state == "running" else None
    return Standing(str(run.path), state, step, steps, left, " ".join(remark.split()))


def _stalled(status: dict, now: datetime) -> str:
    """Why a run that says it runs does not; empty where it may well do."""
    if status.get("host") == socket.gethostname() and not _alive(status.get("pid")):
        return f"its process {status.get('pid')} is gone: the same command resumes it"
    try:
        silent = (now - datetime.fromisoformat(str(status.get("updated")))).total_seconds()
    except (TypeError, ValueError):
        return "its status has no time"
    if silent > STALLED_AFTER:
        return f"no sign of life for {duration_text(silent)} (on {status.get('host')}, process {status.get('pid')})"
    return ""


def _alive(pid) -> bool:
    """Signal 0 asks without disturbing. PermissionError: somebody else's process, so there is one."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _seconds_left(status: dict) -> float | None:
    step, steps, seconds = (number(status.get(key)) for key in ("step", "steps", "seconds"))
    return seconds / step * (steps - step) if step > 0 and seconds >= 0 and steps >= step else None

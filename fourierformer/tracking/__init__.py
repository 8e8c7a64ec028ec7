"""Log the numbers of a run: always to metrics.jsonl, and to the trackers that show them (wandb, trackio, the console).

A failure of the latter is reported once, and the training continues without that tracker. A failure of metrics.jsonl
stops the training: its numbers would be lost.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from fourierformer.printing import echo
from fourierformer.tracking.jsonl import JsonlTracker


class Tracker(Protocol):
    """Show or keep the numbers of a run."""

    def log(self, row: dict) -> None:
        """Log one row, which has "step"."""

    def summary(self, values: dict) -> None:
        """Final or best-so-far numbers, e.g. {"best/valid_ppl": 61.2}; a later value replaces an earlier one."""

    def close(self, exit_code: int) -> None: ...


class Trackers:
    """Pass every row to metrics.jsonl first, then to the other trackers."""

    def __init__(self, metrics: JsonlTracker, others: Iterable[Tracker] = (), say: Callable[[str], None] = echo):
        self.metrics, self.others, self.say = metrics, list(others), say

    def log(self, row: dict) -> None:
        self.metrics.log(row)
        self._call_others("log", row)

    def summary(self, values: dict) -> None:
        self._call_others("summary", values)  # the run directory's summary.json has these numbers

    def close(self, exit_code: int) -> None:
        self._call_others("close", exit_code)
        self.metrics.close(exit_code)

    def position(self) -> int:
        return self.metrics.position()

    @property
    def last_check(self) -> str:
        return self.metrics.last_check

    def rewind(self, offset: int, check: str | None = None) -> None:
        self.metrics.rewind(offset, check)

    def _call_others(self, method: str, argument) -> None:
        for tracker in list(self.others):
            try:
                getattr(tracker, method)(argument)
            except Exception as error:  # no failure of a tracker stops the run
                self.others.remove(tracker)
                with contextlib.suppress(OSError):  # stdout itself may have failed: `python train_lm.py | head`
                    failure = f"{type(tracker).__name__} failed in {method} ({type(error).__name__}: {error})"
                    self.say(f"{failure} and is off for the rest of this run; metrics.jsonl has every number.")


class NoTrackers(Trackers):
    """The trackers of all processes but the first, without effect: process 0 alone writes."""

    def __init__(self) -> None: ...
    def log(self, row: dict) -> None: ...
    def summary(self, values: dict) -> None: ...
    def close(self, exit_code: int) -> None: ...
    def rewind(self, offset: int, check: str | None = None) -> None: ...

    def position(self) -> int:
        return 0

    @property
    def last_check(self) -> str:
        return ""


def build_trackers(
    metrics: Path,
    *,
    console: Tracker | None = None,
    wandb: dict | None = None,
    trackio: dict | None = None,
    say: Callable[[str], None] = echo,
) -> Trackers:
    """The trackers of a run: the file `metrics`, the console if given, and wandb and trackio if their settings (the
    arguments of WandbTracker, of TrackioTracker) are given."""
    file, others = JsonlTracker(metrics), [console] if console else []
    if wandb is not None:
        from fourierformer.tracking.wandb import WandbTracker

        others.append(WandbTracker(**wandb, say=say))
    if trackio is not None:
        from fourierformer.tracking.trackio import TrackioTracker

        others.append(TrackioTracker(**trackio, say=say))
    return Trackers(file, others, say)

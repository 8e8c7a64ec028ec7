"""Logs the numbers of a run: to metrics.jsonl always, and to trackers that show them (wandb, the console).

If one of the latter fails, it is reported once and used no more, and the training goes on. If metrics.jsonl fails, the
training stops: its numbers would be lost.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from fourierformer.tracking.jsonl import JsonlTracker


class Tracker(Protocol):
    """Something that shows or keeps the numbers of a run."""

    def log(self, row: dict) -> None:
        """One row; it has "step"."""

    def summary(self, values: dict) -> None:
        """Final or best-so-far numbers, e.g. {"best/valid_ppl": 61.2}; a later value replaces an earlier one."""

    def close(self, exit_code: int) -> None: ...


class Trackers:
    """Passes every row to metrics.jsonl first, then to the other trackers."""

    def __init__(self, metrics: JsonlTracker, others: Iterable[Tracker] = (), say: Callable[[str], None] = print):
        self.metrics = metrics
        self.others = list(others)
        self.say = say

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

    def rewind(self, offset: int) -> None:
        self.metrics.rewind(offset)

    def _call_others(self, method: str, argument) -> None:
        for tracker in list(self.others):
            try:
                getattr(tracker, method)(argument)
            except Exception as error:  # whatever it is, the run goes on
                self.others.remove(tracker)
                with contextlib.suppress(OSError):  # stdout itself may have failed: `python train_lm.py | head`
                    self.say(
                        f"{type(tracker).__name__} failed in {method} ({type(error).__name__}: {error}) and is off for "
                        "the rest of this run; metrics.jsonl has every number."
                    )


class NoTrackers(Trackers):
    """Does nothing: for all processes but the first, which alone writes."""

    def __init__(self):
        """There is nothing to pass rows to."""

    def log(self, row: dict) -> None:
        """Process 0 logs the same row."""

    def summary(self, values: dict) -> None:
        """Process 0 logs it."""

    def close(self, exit_code: int) -> None:
        """Nothing was opened."""

    def position(self) -> int:
        return 0

    def rewind(self, offset: int) -> None:
        """Process 0 does it."""


def build_trackers(
    metrics: Path, *, console: Tracker | None = None, wandb: dict | None = None, say: Callable[[str], None] = print
) -> Trackers:
    """The trackers of a run: the file `metrics`, the console if given, and wandb if its settings (the arguments of
    WandbTracker) are given."""
    file = JsonlTracker(metrics)
    others = [console] if console else []
    if wandb is not None:
        from fourierformer.tracking.wandb import WandbTracker

        others.append(WandbTracker(**wandb, say=say))
    return Trackers(file, others, say)

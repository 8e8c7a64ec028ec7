"""Where the numbers of a run go: metrics.jsonl always (the truth), and beside it whoever wants to watch (wandb, the
console).

A watcher that fails is named once and dropped; it never stops a training. metrics.jsonl failing does: numbers that
are not kept are lost work.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from fourierformer.tracking.jsonl import JsonlTracker


class Tracker(Protocol):
    def log(self, row: dict) -> None:
        """One row; it has "step"."""

    def summary(self, values: dict) -> None:
        """Final or best-so-far numbers, e.g. {"best/val_ppl": 61.2}; a later value replaces an earlier one."""

    def close(self, exit_code: int) -> None: ...


class Trackers:
    """Hands everything to the truth first, then to the watchers."""

    def __init__(self, truth: JsonlTracker, watchers: Iterable[Tracker] = (), say: Callable[[str], None] = print):
        self.truth = truth
        self.watchers = list(watchers)
        self.say = say

    def log(self, row: dict) -> None:
        self.truth.log(row)
        self._tell("log", row)

    def summary(self, values: dict) -> None:
        self._tell("summary", values)  # summary.json of the run directory is the truth of these

    def close(self, exit_code: int) -> None:
        self._tell("close", exit_code)
        self.truth.close(exit_code)

    def position(self) -> int:
        return self.truth.position()

    def rewind(self, offset: int) -> None:
        self.truth.rewind(offset)

    def _tell(self, method: str, argument) -> None:
        for watcher in list(self.watchers):
            try:
                getattr(watcher, method)(argument)
            except Exception as error:  # any: a watcher's fault is never the run's
                self.watchers.remove(watcher)
                with contextlib.suppress(OSError):  # the output itself may be what broke: `python train_lm.py | head`
                    self.say(
                        f"{type(watcher).__name__} failed in {method} ({type(error).__name__}: {error}) and is off for "
                        "the rest of this run; metrics.jsonl has every number."
                    )


class NoTrackers(Trackers):
    """For processes beside the first one, which alone writes."""

    def __init__(self):
        """Nothing to hand anything to."""

    def log(self, row: dict) -> None:
        """Process 0 logs the same row."""

    def summary(self, values: dict) -> None:
        """Process 0 keeps it."""

    def close(self, exit_code: int) -> None:
        """Nothing was opened."""

    def position(self) -> int:
        return 0

    def rewind(self, offset: int) -> None:
        """Process 0 does it."""


def build_trackers(
    metrics: Path, *, console: Tracker | None = None, wandb: dict | None = None, say: Callable[[str], None] = print
) -> Trackers:
    """metrics.jsonl at `metrics`; the console when given; wandb when its settings (the arguments of WandbTracker) are
    given."""
    truth = JsonlTracker(metrics)
    watchers = [console] if console else []
    if wandb is not None:
        from fourierformer.tracking.wandb import WandbTracker

        watchers.append(WandbTracker(**wandb, say=say))
    return Trackers(truth, watchers, say)

"""Show the progress of a run: a live bar on a terminal; plain lines in log files, Slurm files, CI, joblib workers."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from fourierformer.printing import echo, visible

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fourierformer.tasks import Task

SLOW_DATA = 0.1  # the share of time spent waiting for data from which it is shown
LINES_PER_RUN = 20  # plain training lines of a short run; a long one prints one a minute
SECONDS_BETWEEN_LINES = 60
SHORTEST = "loss 12.345"  # the number beside a bar that is always visible


class ConsoleTracker:
    """Show training and evaluation of a run. step: where a resumed run continues. samples_per_step: in the task's unit
    (tokens, images). prefix: begins every line, where several runs share a screen. metric: the task's primary one.
    eval_every: steps between evaluations, whose time the ETA then includes. memory: the device's peak bytes so far."""

    def __init__(
        self,
        steps: int,
        samples_per_step: int,
        title: str,
        *,
        prefix: str = "",
        step: int = 0,
        task: Task | None = None,
        metric: str = "",
        eval_every: int | None = None,
        memory: Callable[[], int] | None = None,
        stream: TextIO | None = None,
    ):
        self.steps, self.samples_per_step, self.prefix, self.step = steps, samples_per_step, prefix, step
        self.unit, self.rate_key = (task.short_unit, f"{task.unit}_per_s") if task else ("samples", "samples_per_s")
        self.percentages = tuple(known.key for known in task.metrics if known.unit == "%") if task else ()
        self.perplexity = metric == "ppl"  # a function of the training loss; other metrics need an evaluation
        self.eval_every, self.memory = eval_every, memory
        self.stream = stream or sys.stdout
        self._live = _LiveBar(steps, title, step, self.stream) if _is_terminal(self.stream) else None
        self._printed = (step, -math.inf)  # step and time of the last plain line
        self._clock: tuple[int, float] | None = None
        self._rate = 0.0
        self._pauses, self._evaluations = 0.0, 0  # seconds of the run without training; evaluations in them
        self._row: tuple[float, float] | None = None  # time and seconds of training of the last row with both

    def say(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        message = self.prefix + message
        if self._live:
            self._live.say(message)
        else:
            echo(message, file=self.stream, flush=True)

    def log(self, row: dict) -> None:
        self.step = max(self.step, row["step"])
        others = {key: value for key, value in row.items() if key.startswith(("valid_", "test_", "ema_"))}
        self._time_pauses(row, evaluated=bool(others))
        if "train_loss" in row:
            self._training(row)
        if others:
            numbers = "  ".join(f"{key} {self._text(key, value)}" for key, value in others.items())
            self.say(f"step {row['step']:>{len(str(self.steps))}}/{self.steps}  {numbers}")

    def evaluating(self, label: str, done: int, total: int) -> None:
        """Show a second bar during an evaluation, until done == total. Plain output has only the line of its result."""
        if self._live:
            self._live.evaluating(label, done, total)
        self._clock = None  # the rate counts training only

    def measuring(self, split: str, protocol: str) -> None:
        """Announce a measurement, which may take longer than the training, in plain output; a terminal has a bar."""
        if not self._live:
            self.say(f"measuring {split}, {protocol.replace('_', ' ')} ...")

    def summary(self, values: dict) -> None:
        """Without effect: the sweep or the run prints the final table."""

    def close(self, exit_code: int) -> None:
        if self._live:
            self._live.close()

    def _training(self, row: dict) -> None:
        self._measure(row)
        loss = [f"loss {row['train_loss']:.3f}"]
        if self.perplexity:
            overflows = row["train_loss"] >= 700  # exp overflows a double at 709.8
            loss.append(f"ppl {_number(math.inf if overflows else math.exp(row['train_loss']))}")
        rate = [f"lr {row['lr']:.1e}"] if "lr" in row else []
        speed = []
        if self._rate:
            speed = [f"{_thousands(self._rate)} {self.unit}/s", f"ETA {_duration(self._left(row['step']))}"]
        if row.get("data_wait", 0) > SLOW_DATA:
            speed.append(f"waiting for data {100 * row['data_wait']:.0f} %")
        if self._live:
            memory = [f"{self.memory() / 2**30:.1f} GiB"] if self.memory else []
            self._live.update(row["step"], [*loss, *speed, *rate, *memory])
        elif self._due(row["step"]):
            self.say(f"step {row['step']:>{len(str(self.steps))}}/{self.steps}  {'  '.join(loss + rate + speed)}")

    def _left(self, step: int) -> float:
        """Remaining seconds: of the steps after this one and, once one has been timed, of the evaluations from here."""
        training = max(0, self.steps - step) * self.samples_per_step / self._rate
        if not self.eval_every or not self._evaluations:
            return training
        evaluations = -(-self.steps // self.eval_every) - (step - 1) // self.eval_every
        return training + evaluations * self._pauses / self._evaluations

    def _time_pauses(self, row: dict, evaluated: bool) -> None:
        """Add up the time between rows without training: evaluations, and the checkpoints after them."""
        if "seconds" not in row:
            return
        now, trained = time.monotonic(), row["seconds"]
        if self._row:
            self._pauses += max(0.0, now - self._row[0] - (trained - self._row[1]))
            self._evaluations += evaluated
        self._row = (now, trained)

    def _measure(self, row: dict) -> None:
        """Update the smoothed rate: by the row's own if it has one, else by the time between two rows."""
        now, rate = time.monotonic(), row.get(self.rate_key)
        if rate is None and self._clock and now > self._clock[1]:
            rate = (row["step"] - self._clock[0]) * self.samples_per_step / (now - self._clock[1])
        if rate is not None:
            self._rate = 0.7 * self._rate + 0.3 * rate if self._rate else rate
        self._clock = (row["step"], now)

    def _text(self, key: str, value) -> str:
        return f"{value:.2f}" if key.endswith(self.percentages) and isinstance(value, float) else _number(value)

    def _due(self, step: int) -> bool:
        now = time.monotonic()
        far = step - self._printed[0] >= self.steps / LINES_PER_RUN
        due = far or step >= self.steps or now - self._printed[1] >= SECONDS_BETWEEN_LINES
        self._printed = (step, now) if due else self._printed
        return due


class _LiveBar:
    """A progress bar by rich, refreshed by its own thread; ordinary prints appear above it."""

    def __init__(self, steps: int, title: str, step: int, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(file=stream, highlight=False)
        self.bar = 24 if console.width >= 110 else 8
        self.title, self.label, self.numbers = title, "", [""]
        self.counts = 2 * len(str(steps)) + 1  # width of '310/600'
        bars = (TextColumn("{task.description}"), BarColumn(bar_width=self.bar), MofNCompleteColumn())
        self.progress = Progress(*bars, TextColumn("{task.fields[numbers]}"), console=console, refresh_per_second=4)
        self.training = self.progress.add_task("", total=steps, completed=step, numbers="")
        self.evaluation: TaskID | None = None
        self._arrange()
        self.progress.start()

    def say(self, message: str) -> None:
        # soft_wrap: a long path can be copied as one line
        self.progress.console.print(visible(message), markup=False, soft_wrap=True)

    def update(self, step: int, numbers: list[str]) -> None:
        self.numbers = numbers
        self.progress.update(self.training, completed=step)
        self._arrange()

    def evaluating(self, label: str, done: int, total: int) -> None:
        self.label, self.counts = label, max(self.counts, 2 * len(str(total)) + 1)  # both bars share their columns
        label = _escape(self._arrange())
        if self.evaluation is None:
            self.evaluation = self.progress.add_task(label, total=total, numbers="")
        self.progress.update(self.evaluation, description=label, completed=done, total=total)
        if done >= total:
            self.progress.remove_task(self.evaluation)
            self.evaluation = None

    def _arrange(self) -> str:
        """Fit the line: names cut to leave room for the loss, then as many numbers as fit, by falling importance.
        Returns the evaluation's name."""
        room = self.progress.console.width - self.bar - self.counts - 3  # a blank between columns
        title, label = (_cut(name, room - len(SHORTEST)) for name in (self.title, self.label))
        room -= max(len(title), len(label))
        text = self.numbers[0]
        for number in self.numbers[1:]:
            if len(text) + 2 + len(number) > room:
                break
            text += f"  {number}"
        self.progress.update(self.training, description=_escape(title), numbers=_escape(text))
        return label

    def close(self) -> None:
        if self.evaluation is not None:
            self.progress.remove_task(self.evaluation)
        self.progress.stop()


def _is_terminal(stream: TextIO) -> bool:
    """Whether a live bar can be shown: not by workers, which would overwrite each other, nor on a dumb terminal."""
    alone = multiprocessing.current_process().name == "MainProcess"
    return alone and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _cut(text: str, width: int) -> str:
    width = max(width, 4)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _escape(text: str) -> str:
    return visible(text).replace("[", r"\[")  # rich reads [word] as a style


def _number(value) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _thousands(rate: float) -> str:
    return f"{rate / 1e6:.2f}M" if rate >= 1e6 else f"{rate / 1e3:.1f}k" if rate >= 1e3 else f"{rate:.0f}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

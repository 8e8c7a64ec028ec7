"""The interface of a task in the training loop: batches of a step, their loss, evaluations. One object per run."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from fourierformer.errors import SetupError
from fourierformer.processes import Processes

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
Poll = Callable[[], None]  # raises Interrupted after a signal to stop
OnProgress = Callable[[str, int, int], None]  # (label, done, total): progress of an evaluation


class Objective(ABC):
    """Batches, loss and measurements of a run, for the training loop. Each process has one, for its own share of every
    global batch and of every evaluation.

    Examples:
        >>> from pathlib import Path
        >>> from fourierformer.runs.parts import open_run
        >>> parts, step = open_run(Path("runs/my_run"), "cpu")  # with its data set
        >>> numbers = parts.objective.measure(parts.model, "valid", "segment", lambda: None, lambda *progress: None)
        >>> sorted(numbers)
        ['context', 'nll', 'ppl', 'stride', 'tokens']
    """

    corpus: Any  # the AnyCorpus of its task
    metric: str  # the key of the primary metric: "ppl", "top1"
    primary: str  # the evaluation number that selects the best checkpoint: "valid_ppl"
    higher_is_better: bool
    unit: str  # in which samples are counted: "tokens", "images"
    samples_per_step: int  # in a global batch
    steps_per_epoch: int
    micro_steps: int  # micro-batches of one step on one process
    protocols: tuple[str, ...]  # of `measure`; the last one is the one that papers quote
    processes: Processes = Processes()

    def samples_after(self, steps: int) -> int:
        """Tokens or images in the first `steps` steps, for throughput and summaries."""
        return steps * self.samples_per_step

    @abstractmethod
    def micro_batches(self, step: int) -> Iterable:
        """The batches of one optimizer step: a pure function of the step, so that resuming needs no saved state."""

    @abstractmethod
    def loss(self, model: Any, batch: Any) -> Tensor:
        """The loss of a micro-batch, scaled: those of a step sum to the mean loss of this process's part of it."""

    @abstractmethod
    def evaluate(self, model: Any, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        """The numbers of one evaluation during training, with `primary`. Equal on all processes, and as many polls."""

    @abstractmethod
    def measure(
        self, model: Any, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """The metrics of a split under a protocol, with the `scored` numbers that make them comparable."""

    def check_measure(self, split: str, protocol: str) -> None:
        """Raise before the training the SetupError of `measure` after it, for example for a text that is too short."""
        return

    def check_evaluate(self) -> None:
        """Likewise for `evaluate`."""
        return

    def from_training(self, records: dict[str, dict[str, float]]) -> dict[str, dict[str, dict]]:
        """Results of evaluations during training, {split: {protocol: numbers}}; none: whole splits are measured
        later."""
        return {}

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """Inputs for the analysis of attention maps: the number of sequences of a split, `most` at most, and batches of
        them, the same at every call."""
        raise SetupError("runs of this task have no attention maps to measure or to draw")

    def notes(self) -> list[str]:
        """Remarks that a reader of the results needs, for example about unreadable images."""
        return []

    def state_dict(self) -> dict:
        """State for the checkpoint, as plain values, that is no function of the step, such as unreadable images."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Restore the result of `state_dict`."""
        return

    def close(self) -> None:
        """End loader processes."""
        return

    def divided(self, batches: Iterable[T], poll: Poll) -> Iterator[tuple[T, bool]]:
        """The batches of an evaluation, each with whether this process computes it. Polls equally often on every
        process, with or without a batch in a round."""
        for number, batch in enumerate(batches):
            if number % self.processes.world == 0:
                poll()
            yield batch, number % self.processes.world == self.processes.rank


@runtime_checkable
class RowWise(Protocol):
    """Methods of an objective for attentions that draw per row or add to the loss of rows."""

    def rows(self, batch: Any) -> tuple[Tensor, float]:
        """Row numbers in the step's global batch, (B,) int64 on the host, and their share of this process's part."""

    def row_losses(self, model: Any, batch: Any) -> Tensor:
        """The mean loss of each row, (B,); `loss` is their mean times the share."""


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context with the model in evaluation mode, and in its earlier mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)

"""What the program knows of a kind of training, in one object: everything else asks it and names no task itself.

A `Task` states facts and builds; it is made once, imports nothing heavy, and is registered by its name (configs:
`task: language`). An `Objective` is what it builds for one run: batches, loss and measurements on real data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from fourierformer.config import RunSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fourierformer.attention import Attention, Geometry
    from fourierformer.training.processes import Processes

Poll = Callable[[], None]  # raises Interrupted when a signal asked the run to stop
Watch = Callable[[str, int, int], None]  # (label, done, total): progress of an evaluation
Spec = TypeVar("Spec", bound=RunSpec)
Column = tuple[str, str]  # (split, protocol): which evaluation a number comes from


@dataclass(frozen=True)
class Metric:
    """What is measured: how it is called, written and compared."""

    key: str  # in files: results.test.sliding.ppl
    name: str  # in sentences and charts
    short: str  # in heads of columns
    decimals: int
    unit: str = ""
    higher_is_better: bool = False
    logarithmic: bool = False  # its curve is drawn on a logarithmic scale
    skipped: float = 0.1  # the share of training whose curve may leave the frame, or it would flatten all that follows

    @property
    def axis(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: float, *, unit: bool = False) -> str:
        """Rounded as this metric is; what is not finite is spelled out."""
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "infinite"
        # a diverged model's perplexity needs its size, not its decimals
        text = f"{value:.3g}" if abs(value) >= 1e7 else f"{value:,.{self.decimals}f}"
        return f"{text} {self.unit}" if unit and self.unit else text


class AnyCorpus(Protocol):
    """What everybody may ask of a run's data, whatever it is made of."""

    @property
    def name(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of the results must know: how it differs from the published data, say."""

    @property
    def splits(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Compilable(Protocol):
    """A model of blocks that all have one shape: one compilation serves all of them."""

    def compile_blocks(self, **options) -> None: ...


class Task(ABC, Generic[Spec]):
    """A kind of training. Class attributes are what tables, console and scripts ask; methods are what a run asks."""

    name: ClassVar[str]
    script: ClassVar[str]  # that trains it
    spec: ClassVar[type[RunSpec]]
    unit: ClassVar[str]  # what training consumes: "tokens"; a summary has <unit> and <unit>_per_s
    short_unit: ClassVar[str]  # on the console: "tok"
    metrics: ClassVar[tuple[Metric, ...]]  # all it may measure
    beside: ClassVar[tuple[str, ...]] = ()  # metrics a table shows next to the primary one
    protocols: ClassVar[tuple[str, ...]]  # ways to evaluate, in the order of tables
    quoted: ClassVar[tuple[str, ...]]  # the same, those that a paper would quote first
    usual: ClassVar[tuple[Column, ...]]  # columns of a table without any measurement
    protocol_notes: ClassVar[dict[str, str]] = {}  # what a reader of a table must know of a protocol
    blocks: ClassVar[str | None] = None  # name of the column of protocols, where each has lines instead of columns
    scored: ClassVar[tuple[str, ...]]  # numbers of an evaluation that must agree before two may be compared
    waits_for_data: ClassVar[bool] = False  # whether tables show how long training waited for data
    limit: ClassVar[str]  # the key of `evaluation` that bounds how much is evaluated

    def wrong_group(self, section: str, chosen: dict) -> str | None:
        """Why a chosen config group (model or data) belongs to another task; None if it may be of this one."""
        return None

    @abstractmethod
    def primary(self, spec: Spec) -> str:
        """The metric a run is judged by."""

    @abstractmethod
    def geometry(self, spec: Spec) -> Geometry:
        """What the model tells the attention of its first layer."""

    @abstractmethod
    def check_available(self, spec: Spec) -> None:
        """SetupError with ways out unless the data can be had. Under two seconds."""

    @abstractmethod
    def load_data(self, spec: Spec, say: Callable[[str], None]) -> AnyCorpus:
        """The data, prepared where it was not yet."""

    @abstractmethod
    def build_model(self, spec: Spec, attention: Callable[[Geometry], Attention], corpus: Any) -> nn.Module:
        """Without a corpus (in a plan), for the published size of the data."""

    @abstractmethod
    def objective(
        self, spec: Spec, corpus: Any, model: nn.Module, device: torch.device, processes: Processes
    ) -> Objective:
        """Batches, loss and measurements of one run."""

    @abstractmethod
    def steps_per_epoch(self, spec: Spec, corpus: Any) -> int | None:
        """Without a corpus (in a plan), for the published size of the data, where there is one."""

    @abstractmethod
    def samples_per_step(self, spec: Spec) -> int:
        """In `unit`s, of the global batch."""

    @abstractmethod
    def activation_bytes(self, spec: Spec, micro_batch: int) -> int:
        """What one micro-batch keeps for its backward pass, roughly."""

    @abstractmethod
    def data_line(self, corpus: Any) -> str:
        """What a plan says about data that was found."""

    @abstractmethod
    def scored_text(self, numbers: dict) -> str:
        """How an evaluation was made, from its `scored` numbers: "context 256, stride 1, 245,568 tokens scored"."""

    def measured_at_end(self, spec: Spec) -> list[Column]:
        """Evaluations of the finished run's best checkpoint, beside those during training."""
        return []


@runtime_checkable
class RowWise(Protocol):
    """What an objective tells beyond Objective, for attentions that draw per row or add to the loss of rows."""

    def rows(self, batch) -> tuple[Tensor, float]:
        """Which rows of the step's global batch these are, (B,) int64 on the host, and their share of this process's
        part of the step."""

    def row_losses(self, model, batch) -> Tensor:
        """The mean loss of each row, (B,): `loss` is their mean times the share."""


class Objective(Protocol):
    """What the training loop asks. Several processes have one each, for their own share of every global batch and of
    every evaluation."""

    corpus: Any  # an AnyCorpus, of the kind that this objective knows
    metric: str  # what the run is judged by: "ppl", "top1"
    primary: str  # the evaluation number that selects the best checkpoint: "valid_ppl"
    higher_is_better: bool
    unit: str  # what is counted: "tokens", "images"
    samples_per_step: int  # of the global batch
    steps_per_epoch: int
    micro_steps: int  # micro-batches of one step on one process
    protocols: tuple[str, ...]  # that `measure` knows; the last one is what a paper would quote

    def samples_after(self, steps: int) -> int:
        """Tokens or images consumed by the first so many steps: throughput and summaries count these."""

    def micro_batches(self, step: int) -> Iterable:
        """The batches of one optimizer step: a pure function of the step, so nothing has to be saved to resume."""

    def loss(self, model, batch) -> Tensor:
        """This batch's share of the mean loss of this process's part of the step: the shares sum to that mean."""

    def evaluate(self, model, poll: Poll, watch: Watch) -> dict[str, float]:
        """Numbers of one evaluation during training, `primary` among them; the same on every process. Calls `poll`
        equally often on every process."""

    def measure(self, model, split: str, protocol: str, poll: Poll, watch: Watch) -> dict[str, float | int]:
        """The metric of a split under a protocol, with the numbers that make it comparable."""

    def from_training(self, records: dict[str, dict[str, float]]) -> dict[str, dict[str, dict]]:
        """Results that the evaluations during training are already: {split: {protocol: numbers}}."""

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """How many sequences of a split there are to look at, `most` at most, and batches of them, always the same."""

    def notes(self) -> list[str]:
        """What a reader of the results must know: unreadable images, say."""

    def close(self) -> None:
        """Lets go of loader processes."""

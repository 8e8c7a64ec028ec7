"""The interface of a kind of training: a `Task` with all its facts, and the `Objective` that it builds for one run.

There is one object per task. It imports nothing heavy and is registered by its name (configs: `task: language`); all
other code asks it and names no task itself. The Objective has batches, loss and measurements on real data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from fourierformer.config import RunSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fourierformer.attention import Attention, Geometry
    from fourierformer.tasks.trained import TrainedModel
    from fourierformer.training.processes import Processes

Poll = Callable[[], None]  # raises Interrupted when a signal asked the run to stop
Watch = Callable[[str, int, int], None]  # (label, done, total): progress of an evaluation
Spec = TypeVar("Spec", bound=RunSpec)
Column = tuple[str, str]  # (split, protocol): which evaluation a number comes from


@dataclass(frozen=True)
class Metric:
    """A number that is measured: its names, its format, and how two of them compare.

    Examples:
        >>> from fourierformer.tasks import Metric
        >>> Metric("top1", "top-1", "top-1", 2, unit="%", higher_is_better=True).text(71.234, unit=True)
        '71.23 %'
    """

    key: str  # in files: results.test.sliding.ppl
    name: str  # in sentences and charts
    short: str  # in heads of columns
    decimals: int
    unit: str = ""
    higher_is_better: bool = False
    logarithmic: bool = False  # its curve is drawn on a logarithmic scale
    skipped: float = 0.1  # the share of training, at its start, that does not set the range of a chart's axis

    @property
    def axis(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: float, *, unit: bool = False) -> str:
        """A value as text, with this metric's decimals; one that is not finite as a word."""
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "infinite"
        # a diverged model's perplexity needs its size, not its decimals
        text = f"{value:.3g}" if abs(value) >= 1e7 else f"{value:,.{self.decimals}f}"
        return f"{text} {self.unit}" if unit and self.unit else text


class AnyCorpus(Protocol):
    """What the data of every task has."""

    @property
    def name(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks that a reader of the results needs: how the data differs from the published data, say."""

    @property
    def splits(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Compilable(Protocol):
    """A model of blocks with the same shapes, whose blocks are compiled one by one: one compilation is enough."""

    def compile_blocks(self, **options) -> None: ...


class Task(ABC, Generic[Spec]):
    """A kind of training. Tables, console and scripts use the class attributes, a run uses the methods.

    Examples:
        >>> from fourierformer.tasks import tasks
        >>> [(task.name, task.script) for task in tasks()]
        [('language', 'train_lm.py'), ('vision', 'train_vit.py'), ('masked', 'train_lm.py'), ('seq2seq', 'train_lm.py')]
    """

    name: ClassVar[str]
    script: ClassVar[str]  # the script that trains it
    spec: ClassVar[type[RunSpec]]
    unit: ClassVar[str]  # in which training data is counted: "tokens"; a summary has <unit> and <unit>_per_s
    short_unit: ClassVar[str]  # the unit on the console: "tok"
    metrics: ClassVar[tuple[Metric, ...]]  # all metrics that it has
    beside: ClassVar[tuple[str, ...]] = ()  # metrics a table shows next to the primary one
    protocols: ClassVar[tuple[str, ...]]  # ways to evaluate, in the order of tables
    quoted: ClassVar[tuple[str, ...]]  # the same, in the order in which a paper would prefer them
    usual: ClassVar[tuple[Column, ...]]  # columns of a table while nothing has been measured
    protocol_notes: ClassVar[dict[str, str]] = {}  # explanations below a table: protocol -> text
    # A table has columns for every protocol; or, where this is set, lines for every protocol and a column of this name.
    blocks: ClassVar[str | None] = None
    scored: ClassVar[tuple[str, ...]]  # numbers of an evaluation that must be equal for two results to be comparable
    waits_for_data: ClassVar[bool] = False  # whether tables show how long training waited for data
    pipeline: ClassVar[str | None] = None  # the hub's word for what a trained model does: "text-generation"
    limit: ClassVar[str]  # the key of `evaluation` that bounds how much is evaluated

    def wrong_group(self, section: str, chosen: dict) -> str | None:
        """The end of "model=NAME is not for ...", what a chosen config group (model or data) is not for and how it is
        trained: "train_lm.py: python train_vit.py trains image models". None if it may be of this task."""
        return None

    @abstractmethod
    def primary(self, spec: Spec) -> str:
        """The key of the metric by which runs are compared and checkpoints selected."""

    @abstractmethod
    def geometry(self, spec: Spec) -> Geometry:
        """The geometry of the model's first attention layer."""

    def check_attention(self, spec: Spec) -> None:
        """SetupError where a mechanism cannot stand where the model has it; one that cannot be built says so itself.
        Not part of making a spec: it needs torch, which takes seconds to load."""
        return

    @abstractmethod
    def check_available(self, spec: Spec) -> None:
        """SetupError, with ways out, unless the data is there or can be made. In less than two seconds."""

    @abstractmethod
    def load_data(self, spec: Spec, say: Callable[[str], None]) -> AnyCorpus:
        """Loads the data, and prepares it first where that has not been done."""

    def stand_in(self, spec: Spec) -> AnyCorpus | None:
        """Data without a meaning, of the published sizes, by which a plan times steps where the data is not there; None
        where no sizes are published."""

    def with_batch(self, spec: Spec, size: int) -> Spec:
        """The same run with another batch: a plan times small ones on a CPU."""
        return replace(spec, global_batch_size=size)

    def fingerprint(self, spec: Spec, corpus: Any) -> str | None:
        """Hex digits that another content of the data would change; the folder may move. Without a corpus only if they
        are known soon, without loading the data. None where the config alone decides what the data is."""
        return None

    @abstractmethod
    def build_model(self, spec: Spec, attention: Callable[[Geometry], Attention], corpus: Any) -> nn.Module:
        """The model of a run. Without a corpus (in a plan), for the published size of the data."""

    @abstractmethod
    def objective(
        self, spec: Spec, corpus: Any, model: nn.Module, device: torch.device, processes: Processes
    ) -> Objective:
        """Builds the Objective of one run."""

    @abstractmethod
    def steps_per_epoch(self, spec: Spec, corpus: Any) -> int | None:
        """Steps per epoch. Without a corpus (in a plan), for the published size of the data; None if there is none."""

    @abstractmethod
    def samples_per_step(self, spec: Spec) -> int:
        """How many `unit`s a global batch has."""

    @abstractmethod
    def activation_bytes(self, spec: Spec, micro_batch: int) -> int:
        """Bytes that one micro-batch keeps for its backward pass, roughly."""

    @abstractmethod
    def data_line(self, corpus: Any) -> str:
        """The line of a plan (dry_run=true) about the data that it loaded."""

    @abstractmethod
    def scored_text(self, numbers: dict) -> str:
        """The `scored` numbers of an evaluation as text: "context 256, stride 1, 245,568 tokens scored"."""

    def data_facts(self, corpus: Any) -> dict | None:
        """What its trained models must know of the data when that is out of reach, as plain values: vocabulary, names
        of classes. A run keeps them in data.json. None: using a model needs the data itself."""
        return None

    def corpus_of(self, spec: Spec, facts: dict) -> Any:
        """The corpus of these `data_facts`, without any split."""
        raise NotImplementedError(f"task {self.name} has data_facts, but no corpus_of")

    def export_config(self, spec: Spec, model: nn.Module, corpus: Any) -> dict:
        """What other libraries need in the config.json of an exported model."""
        return {}

    def trained(self, spec: Spec, model: nn.Module, corpus: Any, step: int) -> TrainedModel:
        """A trained model as its user wants it."""
        from fourierformer.tasks.trained import TrainedModel

        return TrainedModel(model, spec, corpus, step)

    def measured_at_end(self, spec: Spec) -> list[Column]:
        """The evaluations of the best checkpoint when training is done, beside those during training."""
        return []


@runtime_checkable
class Checkable(Protocol):
    """An objective that knows before the training whether it can be measured afterwards."""

    def check_measure(self, split: str, protocol: str) -> None:
        """SetupError where `measure` would raise one: for a text that is too short, say."""


@runtime_checkable
class Remembering(Protocol):
    """An objective that learns something of its data on the way, which a resumed run has to know too."""

    def remembered(self) -> dict:
        """For the checkpoint: numbers, texts, lists and dictionaries of them."""

    def remember(self, known: dict) -> None:
        """Goes on with what `remembered` gave."""


@runtime_checkable
class RowWise(Protocol):
    """What an objective tells beyond Objective, for attentions that draw per row or add to the loss of rows."""

    def rows(self, batch) -> tuple[Tensor, float]:
        """Which rows of the step's global batch these are, (B,) int64 on the host, and their share of this process's
        part of the step."""

    def row_losses(self, model, batch) -> Tensor:
        """The mean loss of each row, (B,): `loss` is their mean times the share."""


class Objective(Protocol):
    """Batches, loss and measurements of a run, used by the training loop. Several processes have one each, for their
    own share of every global batch and of every evaluation.

    Examples:
        >>> from pathlib import Path
        >>> from fourierformer.runs.parts import open_run
        >>> parts, step = open_run(Path("runs/my_run"), "cpu")  # with its data set
        >>> numbers = parts.objective.measure(parts.model, "valid", "segment", lambda: None, lambda *progress: None)
        >>> sorted(numbers)
        ['context', 'nll', 'ppl', 'stride', 'tokens']
    """

    corpus: Any  # the AnyCorpus of this task
    metric: str  # the key of the primary metric: "ppl", "top1"
    primary: str  # the evaluation number that selects the best checkpoint: "valid_ppl"
    higher_is_better: bool
    unit: str  # in which samples are counted: "tokens", "images"
    samples_per_step: int  # in a global batch
    steps_per_epoch: int
    micro_steps: int  # micro-batches of one step on one process
    protocols: tuple[str, ...]  # of `measure`; the last one is what a paper would quote

    def samples_after(self, steps: int) -> int:
        """Tokens or images in the first `steps` steps, for throughput and summaries."""

    def micro_batches(self, step: int) -> Iterable:
        """The batches of one optimizer step: a pure function of the step, so nothing has to be saved to resume."""

    def loss(self, model, batch) -> Tensor:
        """The loss of a micro-batch, scaled so that those of a step sum to the mean loss of this process's part of
        it."""

    def evaluate(self, model, poll: Poll, watch: Watch) -> dict[str, float]:
        """The numbers of one evaluation during training, `primary` among them, the same on every process. Every process
        calls `poll` equally often."""

    def measure(self, model, split: str, protocol: str, poll: Poll, watch: Watch) -> dict[str, float | int]:
        """The metrics of a split under a protocol, with the `scored` numbers that make them comparable."""

    def from_training(self, records: dict[str, dict[str, float]]) -> dict[str, dict[str, dict]]:
        """Results taken from the evaluations during training: {split: {protocol: numbers}}."""

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """Inputs for the analysis of attention maps: the number of sequences of a split, `most` at most, and batches of
        them, the same at every call."""

    def notes(self) -> list[str]:
        """Remarks that a reader of the results needs: unreadable images, say."""

    def close(self) -> None:
        """Ends loader processes."""

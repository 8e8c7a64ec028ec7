"""The interface of a kind of training: a `Task` with all its facts, and the `Objective` that it builds for one run.

There is one object per task. It imports nothing heavy and is registered by its name (configs: `task: language`); other
code reads its facts and names no task, script or data set itself. The Objective has batches, loss and measurements on
real data.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from fourierformer.config import RunSpec
from fourierformer.errors import SetupError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fourierformer.attention import Attention, Geometry
    from fourierformer.processes import Processes
    from fourierformer.tasks.trained import TrainedModel
    from fourierformer.training.objective import Objective

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


def refuse_word_swap(share: float, reason: str) -> None:
    """SetupError if words are to be swapped where there is no running text of words to predict."""
    if share:
        raise SetupError(f"evaluation.word_swap={share}, but {reason}: evaluation.word_swap=0")


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
        >>> {task.name: task.script for task in tasks() if task.script != "train_lm.py"}
        {'vision': 'train_vit.py'}
    """

    name: ClassVar[str]
    script: ClassVar[str]  # the script that trains it, train_<subcommand>.py
    experiment: ClassVar[str | None] = None  # one of it, where its script trains several tasks
    debug: ClassVar[str | None] = None  # the option of configs/debug that makes its runs small
    # data sets that are made here, whose rows are for tests and no claims: their names, each with a line for tables
    embedded: ClassVar[dict[str, str]] = {}
    spec: ClassVar[type[RunSpec]]
    unit: ClassVar[str]  # in which training data is counted: "tokens"; a summary has <unit> and <unit>_per_s
    short_unit: ClassVar[str]  # the unit on the console: "tok"
    metrics: ClassVar[tuple[Metric, ...]]  # all metrics that it has
    secondary_metrics: ClassVar[tuple[str, ...]] = ()  # metrics a table shows next to the primary one
    protocols: ClassVar[tuple[str, ...]]  # ways to evaluate, in the order of tables
    preferred_protocols: ClassVar[tuple[str, ...]]  # the same, in the order in which a paper would prefer them
    default_columns: ClassVar[tuple[Column, ...]]  # columns of a table while nothing has been measured
    protocol_notes: ClassVar[dict[str, str]] = {}  # explanations below a table: protocol -> text
    # A table has columns for every protocol; or, where this is set, lines for every protocol and a column of this name.
    protocol_column: ClassVar[str | None] = None
    scored: ClassVar[tuple[str, ...]]  # numbers of an evaluation that must be equal for two results to be comparable
    waits_for_data: ClassVar[bool] = False  # whether tables show how long training waited for data
    pipeline: ClassVar[str | None] = None  # the hub's word for what a trained model does: "text-generation"
    limit_key: ClassVar[str]  # the key of `evaluation` that bounds how much is evaluated

    @property
    def subcommand(self) -> str:
        """The word of `fourierformer train lm`, for train_lm.py."""
        return self.script.removeprefix("train_").removesuffix(".py")

    @property
    def command(self) -> str:
        """The command that trains it, by a script or by the installed command, as this process was started."""
        by_script = sys.argv[0].endswith(".py")
        return f"python {self.script}" if by_script else f"fourierformer train {self.subcommand}"

    @abstractmethod
    def primary(self, spec: Spec) -> str:
        """The key of the metric by which runs are compared and checkpoints selected."""

    @abstractmethod
    def geometry(self, spec: Spec) -> Geometry:
        """The geometry of the model's first attention layer."""

    def check_attention(self, spec: Spec) -> None:
        """Raise SetupError where the model cannot have this mechanism; one that cannot be built raises its own error.
        Not part of making a spec: it needs torch, which takes seconds to load."""
        return

    @abstractmethod
    def check_available(self, spec: Spec) -> None:
        """SetupError, with ways out, unless the data is there or can be made. In less than two seconds."""

    @abstractmethod
    def load_data(self, spec: Spec, say: Callable[[str], None]) -> AnyCorpus:
        """Loads the data, and prepares it first where that has not been done."""

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
        """The number of `unit`s in a global batch."""

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
        """Facts of the data that trained models need without the data, as plain values: vocabulary, names
        of classes. A run keeps them in data.json. None: using a model needs the data itself."""
        return None

    def corpus_of(self, spec: Spec, facts: dict) -> Any:
        """The corpus of these `data_facts`, without any split."""
        raise NotImplementedError(f"task {self.name} has data_facts, but no corpus_of")

    def export_config(self, spec: Spec, model: nn.Module, corpus: Any) -> dict:
        """What other libraries need in the config.json of an exported model."""
        return {}

    def export_files(self, spec: Spec, corpus: Any) -> dict[str, dict]:
        """JSON files beside config.json that other libraries need: name -> content."""
        return {}

    def trained(self, spec: Spec, model: nn.Module, corpus: Any, step: int) -> TrainedModel:
        """A trained model as its user wants it."""
        from fourierformer.tasks.trained import TrainedModel

        return TrainedModel(model, spec, corpus, step)

    def measured_at_end(self, spec: Spec) -> list[Column]:
        """The evaluations of the best checkpoint when training is done, beside those during training."""
        return []


class SequenceTask(Task[Spec]):
    """The common part of the tasks of train_lm.py, whose specs have its `evaluation`."""

    script = "train_lm.py"
    limit_key = "max_tokens"

    def options(self, spec: Spec, device: torch.device, processes: Processes) -> dict[str, Any]:
        """Keyword arguments of their objectives."""
        evaluation: Any = spec.evaluation
        return {
            "global_batch_size": spec.global_batch_size,
            "micro_batch_size": spec.trainer.micro_batch_size,
            "tokens_per_forward": evaluation.tokens_per_forward,
            "max_tokens": evaluation.max_tokens,
            "device": device,
            "processes": processes,
            "seed": spec.seed,
        }

    def measured_at_end(self, spec: Spec) -> list[Column]:
        evaluation: Any = spec.evaluation
        return [(split, protocol) for split in evaluation.splits for protocol in evaluation.protocols]

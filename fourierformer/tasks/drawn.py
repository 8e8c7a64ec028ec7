"""The common part of tasks whose sequences are drawn anew at every step: config and data."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from fourierformer.config import RunSpec
from fourierformer.errors import SetupError, check_range
from fourierformer.tasks.base import SequenceTask, refuse_word_swap


@dataclass(frozen=True, kw_only=True)
class DrawnEvaluation:
    """How the best checkpoint is measured when training is done."""

    splits: list[Literal["valid", "test"]]
    protocols: list[str]
    tokens_per_forward: int
    max_tokens: int | None  # only the first sequences with so many tokens, at least one
    word_swap: float = 0.0  # not possible here

    task: ClassVar[str]
    known: ClassVar[tuple[str, ...]]  # protocols

    def __post_init__(self):
        check_range("evaluation.tokens_per_forward", self.tokens_per_forward, 1)
        check_range("evaluation.max_tokens", self.max_tokens, 1)
        refuse_word_swap(self.word_swap, f"task={self.task} has no text")
        if set(self.protocols) - set(self.known):
            raise SetupError(
                f"evaluation.protocols=[{','.join(self.protocols)}]: those of task={self.task} are "
                f"evaluation.protocols=[{','.join(self.known)}]"
            )


@dataclass(frozen=True, kw_only=True)
class DrawnSpec(RunSpec):
    evaluation: DrawnEvaluation

    def __post_init__(self):
        super().__post_init__()
        missing = {
            "trainer.steps=300": self.trainer.steps is None,
            "trainer.eval_every=10": self.trainer.eval_every is None,
            "trainer.save_every=100": self.trainer.save_every is None,
            "schedule.warmup_steps=50": self.schedule.warmup_steps is None,
        }
        if any(missing.values()):
            needed = " ".join(key for key, is_missing in missing.items() if is_missing)
            raise SetupError(
                f"task={self.task} draws new sequences at every step and has no epochs: give lengths in steps: {needed}"
            )


Spec = TypeVar("Spec", bound=DrawnSpec)


class DrawnTask(SequenceTask[Spec]):
    @abstractmethod
    def corpus(self, spec: Spec) -> Any:
        """The held-out sequences."""

    def check_available(self, spec: Spec) -> None:
        """The sequences are drawn when they are needed."""

    def load_data(self, spec: Spec, say) -> Any:
        return self.corpus(spec)

    def data_facts(self, corpus: Any) -> dict:
        return {}

    def corpus_of(self, spec: Spec, facts: dict) -> Any:
        return self.corpus(spec)

    def steps_per_epoch(self, spec: Spec, corpus: Any) -> int | None:
        return None

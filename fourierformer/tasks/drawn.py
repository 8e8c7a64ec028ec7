"""What the specs of tasks share whose sequences are drawn anew at every step."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fourierformer.config import RunSpec
from fourierformer.errors import SetupError, check_range


@dataclass(frozen=True, kw_only=True)
class DrawnEvaluation:
    """How the best checkpoint is measured when training is done."""

    splits: list[Literal["valid", "test"]]
    protocols: list[str]
    tokens_per_forward: int
    max_tokens: int | None  # only the first sequences with so many tokens, at least one

    task: ClassVar[str]
    known: ClassVar[tuple[str, ...]]  # protocols

    def __post_init__(self):
        check_range("evaluation.tokens_per_forward", self.tokens_per_forward, 1)
        check_range("evaluation.max_tokens", self.max_tokens, 1)
        if set(self.protocols) - set(self.known):
            raise SetupError(
                f"evaluation.protocols=[{','.join(self.protocols)}]: those of task={self.task} are "
                f"evaluation.protocols=[{','.join(self.known)}]; debug=smoke_{self.task}, not debug=smoke"
            )


def check_lengths_in_steps(spec: RunSpec) -> None:
    missing = {
        "trainer.steps=300": spec.trainer.steps is None,
        "trainer.eval_every=10": spec.trainer.eval_every is None,
        "trainer.save_every=100": spec.trainer.save_every is None,
        "schedule.warmup_steps=50": spec.schedule.warmup_steps is None,
    }
    if any(missing.values()):
        needed = " ".join(key for key, is_missing in missing.items() if is_missing)
        raise SetupError(
            f"task={spec.task} draws new sequences at every step and has no epochs: give lengths in steps: {needed}"
        )

"""The keys of configs/{trainer,optim,schedule}/*.yaml, and their ranges."""

from dataclasses import dataclass, fields
from typing import Literal

from fourierformer.errors import SetupError, check_range

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The keys of configs/trainer/*.yaml."""

    steps: int | None  # either this or epochs, which become steps once the data is known
    epochs: float | None
    eval_every: int | None  # steps; null = once per epoch
    save_every: int | None
    log_every: int
    clip: float | None  # largest norm of the whole gradient; null = no clipping
    max_bad_steps: int  # non-finite steps in a row before the run gives up
    micro_batch_size: int | None  # sequences or images per forward pass and process; null = all of its share at once
    ema_decay: float | None  # null = no averaged weights
    keep_checkpoints: int
    device: str
    precision: Precision
    compile: Literal["auto", "always", "never"]
    deterministic: bool
    patience: int | None = None  # stop after so many evaluations without a better one; null = train all steps

    def __post_init__(self):
        counts = ("steps", "eval_every", "save_every", "log_every", "max_bad_steps", "micro_batch_size", "patience")
        for key in (*counts, "keep_checkpoints"):
            check_range(f"trainer.{key}", getattr(self, key), 1)
        check_range("trainer.epochs", self.epochs, 0, 1e6, above_low=True)
        check_range("trainer.clip", self.clip, 0, above_low=True)
        check_range("trainer.ema_decay", self.ema_decay, 0, 1)
        if self.steps is None and self.epochs is None:
            given = "trainer.steps=1000 or trainer.epochs=10, or choose an experiment: experiment=NAME"
            raise SetupError(f"no length given: {given}")
        if self.steps is not None and self.epochs is not None:
            both = f"trainer.steps={self.steps} and trainer.epochs={self.epochs:g}"
            raise SetupError(f"{both} are two lengths of training: add trainer.steps=null or trainer.epochs=null")

    def in_steps(self, steps_per_epoch: int) -> "TrainerInSteps":
        """This config with every length in steps."""
        steps = self.steps
        if steps is None:
            assert self.epochs is not None  # __post_init__: one of the two is given
            steps = max(1, round(self.epochs * steps_per_epoch))
        every = {key: getattr(self, key) or steps_per_epoch for key in ("eval_every", "save_every")}
        same = {field.name: getattr(self, field.name) for field in fields(self)}
        return TrainerInSteps(**same | {"steps": steps, "epochs": None} | every)


@dataclass(frozen=True, kw_only=True)
class TrainerInSteps(TrainerConfig):
    """The config of the loop: every length is known, in steps."""

    steps: int
    epochs: None
    eval_every: int
    save_every: int


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The keys of configs/optim/*.yaml."""

    name: Literal["adam", "adamw", "muon"]
    lr: float
    betas: list[float]
    eps: float
    weight_decay: float

    def __post_init__(self):
        check_range("optim.lr", self.lr, 0, above_low=True)
        check_range("optim.eps", self.eps, 0, above_low=True)
        check_range("optim.weight_decay", self.weight_decay, 0)
        if len(self.betas) != 2:
            raise SetupError(f"optim.betas={self.betas}: give two numbers, e.g. [0.9,0.999]")
        for beta in self.betas:
            check_range("optim.betas", beta, 0, 1)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The keys of configs/schedule/*.yaml."""

    name: Literal["cosine", "constant"]
    warmup_steps: int | None  # either this or warmup_epochs
    warmup_epochs: float | None
    warmup_start: float  # the rate that the warm-up begins from
    min_lr: float
    per_epoch: bool  # true = constant within an epoch, and one epoch late, as in DeiT's code

    def __post_init__(self):
        check_range("schedule.warmup_steps", self.warmup_steps, 0)
        check_range("schedule.warmup_epochs", self.warmup_epochs, 0, 1e6)
        for key in ("warmup_start", "min_lr"):
            check_range(f"schedule.{key}", getattr(self, key), 0, 1)
        if (self.warmup_steps is None) == (self.warmup_epochs is None):
            both = f"schedule.warmup_steps={self.warmup_steps} and schedule.warmup_epochs={self.warmup_epochs}"
            raise SetupError(f"{both}: give one of them (0 = no warm-up) and set the other one to null")

    def warmup(self, steps_per_epoch: int) -> int:
        if self.warmup_steps is not None:
            return self.warmup_steps
        assert self.warmup_epochs is not None  # __post_init__: one of the two is given
        return round(self.warmup_epochs * steps_per_epoch)

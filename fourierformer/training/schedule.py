"""Learning rates as pure functions of the step: nothing to save, nothing to restore."""

import math
from dataclasses import dataclass
from typing import Literal

from fourierformer.errors import SetupError, check_range


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The keys of configs/schedule/*.yaml."""

    name: Literal["cosine", "constant"]
    warmup_steps: int | None  # one of the two
    warmup_epochs: float | None
    warmup_start: float  # the rate that the warm-up begins from
    min_lr: float
    per_epoch: bool  # true = as in DeiT's code: constant within an epoch, and one epoch late

    def __post_init__(self):
        for key in ("warmup_steps", "warmup_epochs", "warmup_start", "min_lr"):
            check_range(f"schedule.{key}", getattr(self, key), 0)
        if (self.warmup_steps is None) == (self.warmup_epochs is None):
            raise SetupError(
                f"schedule.warmup_steps={self.warmup_steps} and schedule.warmup_epochs={self.warmup_epochs}: give one "
                "of them (0 = no warm-up) and set the other one to null"
            )

    def warmup(self, steps_per_epoch: int) -> int:
        return round(self.warmup_epochs * steps_per_epoch) if self.warmup_steps is None else self.warmup_steps


def learning_rate(update: int, *, steps: int, peak: float, config: ScheduleConfig, steps_per_epoch: int) -> float:
    """Rate of update number 1, 2, ... steps.

    Linear to the peak over the warm-up, then the cosine over ALL steps as in the paper, so it joins slightly below the
    peak. The language model's code sets the rate after each update, which gives its very first update the full peak
    rate; here update 1 has peak / warmup_steps. DeiT's code steps its schedule after each epoch, and the first time
    with epoch 0: epoch e trains at the rate of time e - 1, and epochs 0 and 1 at that of time 0.
    """
    time = max(0, (update - 1) // steps_per_epoch - 1) * steps_per_epoch if config.per_epoch else update
    warmup = config.warmup(steps_per_epoch)
    if time < warmup:
        return config.warmup_start + (peak - config.warmup_start) * time / warmup
    if config.name == "constant":
        return peak
    return config.min_lr + 0.5 * (peak - config.min_lr) * (1 + math.cos(math.pi * time / steps))

"""Learning rates as pure functions of the step: nothing to save, nothing to restore."""

import math
from dataclasses import dataclass
from typing import Literal

from fourierformer.errors import check_range


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The keys of configs/schedule/*.yaml."""

    name: Literal["cosine", "constant"]
    warmup_steps: int
    min_lr: float

    def __post_init__(self):
        check_range("schedule.warmup_steps", self.warmup_steps, 0)
        check_range("schedule.min_lr", self.min_lr, 0)


def learning_rate(update: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """Rate of update number 1, 2, ... steps.

    Linear to the peak over the warm-up, then the cosine over ALL steps as in the paper, so it joins slightly below the
    peak. The authors' code sets the rate after each update, which gives its very first update the full peak rate; here
    update 1 has peak / warmup_steps.
    """
    if update < config.warmup_steps:
        return peak * update / config.warmup_steps
    if config.name == "constant":
        return peak
    return config.min_lr + 0.5 * (peak - config.min_lr) * (1 + math.cos(math.pi * update / steps))

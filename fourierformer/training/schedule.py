"""The learning rate as a pure function of the step, which needs no state in a checkpoint."""

import math

from fourierformer.training.config import ScheduleConfig


def learning_rate(update: int, *, steps: int, peak: float, config: ScheduleConfig, steps_per_epoch: int) -> float:
    """The rate of update 1, 2, ... steps.

    Linear to the peak over the warm-up, then the cosine over ALL steps as in the paper, so it joins slightly below the
    peak. Update 1 has peak / warmup_steps here. The language model's code sets the rate after each update: every update
    has the rate of the one before, and the first one the full peak rate. DeiT's code steps its schedule after each
    epoch, beginning with epoch 0: epoch e trains at the rate of time e - 1, and epochs 0 and 1 at the rate of time 0.
    """
    time = max(0, (update - 1) // steps_per_epoch - 1) * steps_per_epoch if config.per_epoch else update
    warmup = config.warmup(steps_per_epoch)
    if time < warmup:
        return config.warmup_start + (peak - config.warmup_start) * time / warmup
    if config.name == "constant":
        return peak
    return config.min_lr + 0.5 * (peak - config.min_lr) * (1 + math.cos(math.pi * time / steps))

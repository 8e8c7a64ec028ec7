"""Exponential moving average of the weights, updated without waiting for the device."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class MovingAverage(AveragedModel):
    """decay * average + (1 - decay) * weights at each update; the first one copies the weights.

    Numbers and state equal AveragedModel's with get_ema_multi_avg_fn(decay), which sends its count of updates to the
    device in every update, so that a GPU has to finish its work first; here the count stays on the host.
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        averages: list[Tensor] = list(self.module.parameters())
        weights: list[Tensor] = list(model.parameters())
        if self.n_averaged == 0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
        for own, current in zip(self.module.buffers(), model.buffers(), strict=True):
            own.copy_(current)
        self.n_averaged += 1

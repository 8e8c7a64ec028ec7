"""Dropout of the models of text."""

import torch
from torch import Tensor, nn

from fourierformer.models.config import LMConfig, Seq2SeqConfig


class Dropout16(nn.Dropout):
    """Dropout with 16 random bits per element on a CPU, where torch draws a number of double precision for each.

    The share that is dropped is p < 1, rounded to a multiple of 2^-16 below 1. Kept elements are divided by the share
    that is kept, so that the expectation is the input. On other devices, and under torch.compile, which has its own
    random numbers, this is torch's dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        numbers = words.view(torch.int16)[: x.numel()].view(x.shape)  # uniform in -2^15 ... 2^15 - 1
        keep = numbers >= dropped - 2**15
        return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


def dropout_layer(config: LMConfig | Seq2SeqConfig) -> nn.Dropout:
    return (Dropout16 if config.dropout_mask == "bits16" else nn.Dropout)(config.dropout)

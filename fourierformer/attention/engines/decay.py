"""A decay per head and token that the layer's input chooses, as in Mamba-2."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention.base import Geometry, to_float32


class TokenDecay(nn.Module):
    """log a_t = -A s_t with s_t = softplus(w.x_t + b) per head: the decay at rate A during a step of length s_t.

    A starts uniform in 0 .. 16, as in Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464; Mamba-2 from 1, Dao and Gu
    2024, arXiv 2405.21060), softplus(b) log-uniform in 0.001 .. 0.1 (Gu and Dao 2023, arXiv 2312.00752), drawn per
    head. b is not the bias of a linear layer, which models set to 0.
    """

    def __init__(self, geometry: Geometry):
        super().__init__()
        self.weight = nn.Linear(geometry.dim, geometry.heads, bias=False)
        self.log_rate = nn.Parameter(torch.empty(geometry.heads).uniform_(1e-3, 16).log())
        steps = torch.empty(geometry.heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.bias = nn.Parameter(steps.expm1().log())  # the inverse of softplus

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, N, dim) -> log a and s, (B, H, N) each, in float32 at least."""
        logits, bias, log_rate = to_float32(self.weight(x).mT, self.bias[:, None], self.log_rate[:, None])
        steps = F.softplus(logits + bias)
        return -log_rate.exp() * steps, steps

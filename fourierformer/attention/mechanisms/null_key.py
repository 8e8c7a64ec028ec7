"""Weights that sum to less than 1: a null key of value 0 takes part in the normalisation.

A query may then attend to nothing. FourierFormer's eps is such a key, of log weight log eps.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.attention.engines.log_kernel import SINC_TURNS, LogKernel
from fourierformer.attention.engines.weighted import WeightedAttention
from fourierformer.attention.mechanisms.fourier import check_power, initial_radius
from fourierformer.errors import check_range


class NullKeyAttention(WeightedAttention):
    """W_ij = w_ij / (e^b + sum_j w_ij) with log w from `log_kernel` and b, one number per head, from `null`.

    `diagnostics` reports the mean attended share sum_j W_ij of the last queries in an evaluation.
    """

    log_kernel: LogKernel

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.attended_share = EvaluationMean()

    def null(self) -> Tensor | float:
        """b, (H, 1, 1) or one number."""
        raise TypeError(f"{type(self).__name__} does not define null()")

    def weights(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        logits = self.log_kernel(q, k).masked_fill(~visible, -math.inf)
        null = self.null()
        if not isinstance(null, Tensor):
            null = logits.new_full((), null)  # not a tensor of the host, for whose copy it would wait for the GPU
        null = null.to(q.dtype).expand(*logits.shape[:3], 1)
        return torch.cat([null, logits], dim=-1).softmax(-1)[..., 1:]

    def watch(self, weights: Tensor) -> None:
        self.attended_share.add(weights.sum(-1))

    def diagnostics(self) -> dict[str, float]:
        share = self.attended_share.value()
        return self.log_kernel.numbers() | ({} if math.isnan(share) else {"attended_share": share})


@register("softmax1", "softmax with 1 added to the sum of weights: a query may attend to nothing")
@register("sink", "softmax with a number that each head learns added to the sum of weights", logit="learned")
class Sink(NullKeyAttention):
    """e^(q.k / sqrt(D)) / (e^b + sum_j e^(q.k_j / sqrt(D))): b = 0 (`logit="zero"`), or learned per head from 0.

    With b -> -infinity softmax. kernel="gaussian": exp(-|q - k|^2 / (2 sqrt(D))) in place of the exponential, where b
    also decides how far a key may be.
    """

    rotary_ok = True
    source = "Miller 2023, Attention is off by one (learned: gpt-oss, OpenAI 2025)"

    def __init__(
        self, geometry: Geometry, *, logit: Literal["zero", "learned"] = "zero",
        kernel: Literal["dot", "gaussian"] = "dot",
    ):  # fmt: skip
        super().__init__(geometry)
        self.log_kernel = LogKernel(kernel, bandwidth=math.sqrt(geometry.head_dim))
        self.logit = nn.Parameter(torch.zeros(geometry.heads)) if logit == "learned" else None

    def null(self) -> Tensor | float:
        return 0.0 if self.logit is None else self.logit[:, None, None]


@register("fourier_sink", "sinc⁴ products with an eps that each head learns")
class FourierSink(NullKeyAttention):
    """w_ij / (eps_h + sum_j w_ij), w_ij = prod_d sinc(R (q_id - k_jd))^power: Fourier attention whose eps is learned.

    log eps is the parameter. By explicit matrices, so slower than `fourier`, whose kernels take eps as a constant.
    """

    rotary_ok = SINC_TURNS
    cost, source = "N² C sines", "ours, from Nguyen et al. 2022, arXiv 2206.00206"

    def __init__(
        self, geometry: Geometry, *, power: int = 4, radius: float | Literal["paper", "matched"] = "matched",
        eps: float = 1e-6,
    ):  # fmt: skip
        super().__init__(geometry)
        check_power(power, allow_negative=False, backend="auto")
        check_range("attention.eps", eps, 0, above_low=True)
        self.log_kernel = LogKernel("sinc", radius=initial_radius(radius, geometry, power), power=power)
        self.log_eps = nn.Parameter(torch.full((geometry.heads,), math.log(eps)))

    def null(self) -> Tensor:
        return self.log_eps[:, None, None]

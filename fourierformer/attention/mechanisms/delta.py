"""The fast weight memory: the delta rule over features that are positive and sum to 1."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines.delta_rule import delta_rule, delta_step
from fourierformer.attention.engines.features import elu_features, orthogonal_gaussian, positive_exponents
from fourierformer.attention.engines.recurrence import Form
from fourierformer.attention.mechanisms.dpfp import check_nu, dpfp_features
from fourierformer.seeds import seed_of

SUM_EPS = 1e-5  # added to the sum of features: those of dpfp can all be 0

Feature = Literal["dpfp", "elu", "performer"]


@register("fast_weight", "a memory that overwrites: the delta rule, with a learned writing rate per head and token")
class FastWeight(Attention):
    """o_t = S_t^T phi(q_t) / sqrt(D) with S_t of the delta rule and beta_t = sigmoid(w.x_t) per head.

    phi is positive and divided by its sum, so that writes and reads are weighted averages over the rows of the memory,
    without a denominator. `dpfp` has 2 D nu features, `elu` D, `performer` about D log D random ones (divided by their
    sum, a softmax). No maps: the weights of the values depend on beta, hence on x.
    """

    full_ok = "the delta rule overwrites in the order of writing, and the patches of an image have no order"
    cross_ok = "a query reads the memory of its own position, and there is none in another sequence"
    padding_ok = True
    cost, state, source = "N M C, M = 2 D nu", "M C", "Schlag et al. 2021, arXiv 2102.11174"
    frequencies: Tensor  # of the performer's features

    def __init__(self, geometry: Geometry, *, feature: Feature = "dpfp", nu: int = 3, form: Form = "auto"):
        super().__init__(geometry)
        width = geometry.head_dim
        if feature == "dpfp":
            check_nu(nu, width)
        self.feature, self.nu, self.form = feature, nu, form
        self.beta = nn.Linear(geometry.dim, geometry.heads, bias=False)
        random = max(1, int(width * math.log(width)))
        self.features = {"dpfp": 2 * width * nu, "elu": width, "performer": random}[feature]
        if feature == "performer":
            generator = torch.Generator().manual_seed(seed_of("fast_weight", geometry.seed, geometry.layer))
            self.register_buffer("frequencies", orthogonal_gaussian(random, width, generator).float())

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        rates = self._rates(x)
        if keep is not None:  # padding writes nothing
            rates = rates.masked_fill(~keep[:, None], 0.0)
        mixed = delta_rule(self._features(q), self._features(k), v, rates, form=self.form)
        return mixed / math.sqrt(self.geometry.head_dim)

    def start(self, batch: int) -> State:
        (like,) = to_float32(self.qkv.weight)
        return (like.new_zeros(batch, self.geometry.heads, self.features, self.geometry.head_dim),)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = delta_step(self._features(q), self._features(k), v, self._rates(x), state)
        return mixed / math.sqrt(self.geometry.head_dim), state

    def _rates(self, x: Tensor) -> Tensor:
        """beta (B, H, N) from the layer's input (B, N, dim)."""
        (logits,) = to_float32(self.beta(x).transpose(1, 2))
        return logits.sigmoid()

    def _features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            (x,) = to_float32(x)
            if self.feature == "performer":
                scaled = x * self.geometry.head_dim**-0.25
                return positive_exponents(scaled, self.frequencies).softmax(-1)
            features = dpfp_features(x, self.nu) if self.feature == "dpfp" else elu_features(x)
            return features * (features.sum(-1, keepdim=True) + SUM_EPS).reciprocal()  # a division's gradient is slower

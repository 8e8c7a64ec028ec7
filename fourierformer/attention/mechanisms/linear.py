"""Linear attention by feature maps of queries and keys alone: the common class, and the two simplest maps."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines import recurrence
from fourierformer.attention.engines.features import draw_frequencies, elu_features, relu_features
from fourierformer.attention.engines.recurrence import Form, Options
from fourierformer.errors import SetupError, check_range

# Added to max(0, omega.x), whose mean is 0.4 |x|. A query or key without positive features, such as x = 0, then has
# equal weights instead of 0 / 0.
OFFSET = 1e-3


class FeaturePair(NamedTuple):
    """phi(q), phi(k), and options of recurrence.py for the weights and their normalisation."""

    q: Tensor
    k: Tensor
    options: Options


class FeatureAttention(Attention):
    """o_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j). A subclass defines phi, and sets `features`, the
    number of features. Linear in the number of tokens: sums over keys replace the keys (recurrence.py).
    """

    rotary_ok: bool | str = "its features are functions of single coordinates, which a rotation mixes"
    partial_queries = padding_ok = True
    cross_ok: bool | str = True
    cost, state = "N M C", "M (C + H)"
    features: int

    def __init__(self, geometry: Geometry, form: Form):
        super().__init__(geometry)
        self.form = form

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        """Features of q (B, H, n, K) and k (B, H, N, K), both float32 at least."""
        raise TypeError(f"{type(self).__name__} does not define phi()")

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, options = self.phi(*to_float32(q, k))
            return recurrence.linear_attention(fq, fk, v, causal=causal, form=self.form, keep=keep, **options)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, options = self.phi(*to_float32(q, k))
            return recurrence.linear_maps(fq, fk, causal=self.geometry.causal, **options)

    def start(self, batch: int) -> State | None:
        heads, width = self.geometry.heads, self.geometry.head_dim
        return recurrence.linear_start(self.qkv.weight, batch, heads, self.features, width)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, options = self.phi(*to_float32(q, k))
            return recurrence.linear_step(fq, fk, v, state, **options)


def check_features(features: int, *, even: bool = False) -> None:
    """SetupError for an impossible number of features; even: sines and cosines, or opposite signs, come in pairs."""
    if features < 1 or (even and features % 2):
        kind = "an even number" if even else "a number"
        pairs = ": they come in pairs" if even else ""
        raise SetupError(f"attention.features must be {kind} of at least {2 if even else 1}, got {features}{pairs}")


@register("linear_elu", "linear attention with the features elu(x) + 1")
class LinearElu(FeatureAttention):
    """phi(x) = elu(x) + 1, D features (Katharopoulos et al. 2020): the cheapest positive map. It approximates no
    kernel; `eps` is added to the sum of weights."""

    cost, state = "N D C", "C (D + 1)"
    source = "Katharopoulos et al. 2020, arXiv 2006.16236"

    def __init__(self, geometry: Geometry, *, eps: float = 1e-6, form: Form = "auto"):
        super().__init__(geometry, form)
        check_range("attention.eps", eps, 0, above_low=True)  # it keeps a sum of weights from 0
        self.eps, self.features = eps, geometry.head_dim

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        return FeaturePair(elu_features(q), elu_features(k), {"eps": self.eps})


@register("linear_relu", "linear attention with random ReLU features: the arc-cosine kernel of order 1")
class LinearRelu(FeatureAttention):
    """phi(x) = sqrt(2/M) max(0, omega.x) over fixed random omega: on average |q| |k| (sin t + (pi - t) cos t) / pi.

    t is the angle between q and k (Cho and Saul 2009): the weight of a key grows with its length and falls with its
    angle to the query. |q| cancels. Performer's generalised attention (arXiv 2009.14794, section 2.2).
    """

    rotary_ok = "products with random vectors are relative in their mean only"
    source = "Cho and Saul 2009; Choromanski et al. 2021, arXiv 2009.14794"
    frequencies: Tensor

    def __init__(self, geometry: Geometry, *, features: int = 128, form: Form = "auto"):
        super().__init__(geometry, form)
        check_features(features)
        self.features, self.offset = features, OFFSET * math.sqrt(2 / features)
        self.register_buffer("frequencies", draw_frequencies(geometry, features, "linear_relu"))

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        fq, fk = (relu_features(x, self.frequencies) + self.offset for x in (q, k))
        return FeaturePair(fq, fk, {})

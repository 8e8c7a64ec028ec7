"""Performer: softmax attention estimated without bias by random features of its kernel exp(q.k / sqrt(D))."""

from typing import Literal

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep, State, to_float32
from fourierformer.attention.engines import features as feature_maps
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.attention.engines.features import draw_frequencies, trigonometric_features
from fourierformer.attention.engines.floor import check_floor, floor_diagnostics
from fourierformer.attention.engines.recurrence import Form, Options, linear_attention, linear_start, linear_step
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair, check_features
from fourierformer.errors import check_range
from fourierformer.transfer import to_device

# Added to a key's features, whose mean is 1: keys that are all far from every frequency have equal weights, not 0 / 0.
OFFSET = 1e-6


@register("performer", "softmax's kernel by positive random features (FAVOR+)")
class Performer(FeatureAttention):
    """phi(x) = exp(omega.x - |x|^2/2) / sqrt(M) > 0, of q and k over D^(1/4): E phi(q).phi(k) = exp(q.k/sqrt(D)).

    Orthogonal omega ~ N(0, I), `features` of them, different in every head. `kind=hyperbolic` takes half as many and
    their negatives, with lower variance. The largest exponent of a query is subtracted (it cancels). The maximum over
    keys is not: the past would depend on the future, and exp does not overflow (features.py).
    The estimate is useful while |x| is small: the error falls as M^(-1/2), but its factor grows as exp(|q + k|^2 / 2).
    `redraw`: the number of training steps between new frequencies, so that the model does not fit a single draw.
    """

    rotary_ok = "products with random vectors are relative in their mean only"
    source = "Choromanski et al. 2021, arXiv 2009.14794"
    frequencies: Tensor

    def __init__(
        self, geometry: Geometry, *, kind: Literal["positive", "hyperbolic"] = "positive",
        features: int = 128, redraw: int | None = 1000, form: Form = "auto",
    ):  # fmt: skip
        super().__init__(geometry, form)
        check_features(features, even=kind == "hyperbolic")
        check_range("attention.redraw", redraw, 1)  # null: never
        self.kind, self.features, self.redraw = kind, features, redraw
        self.register_buffer("frequencies", self._draw(0))

    def begin_step(self, step: int) -> None:
        """The draw is a function of the step, and the buffer is saved: a resumed run has the same frequencies."""
        if self.redraw is not None and step % self.redraw == 0:
            (drawn,) = to_device(self.frequencies.device, self._draw(step // self.redraw))
            self.frequencies.copy_(drawn)

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        exponents = feature_maps.positive_exponents if self.kind == "positive" else feature_maps.hyperbolic_exponents
        eq, ek = (exponents(self.geometry.head_dim**-0.25 * x, self.frequencies) for x in (q, k))
        return FeaturePair((eq - eq.detach().amax(-1, keepdim=True)).exp(), ek.exp() + OFFSET, {})

    def _draw(self, number: int) -> Tensor:
        count = self.features if self.kind == "positive" else self.features // 2
        return draw_frequencies(self.geometry, count, "performer", number)


@register("performer_trig", "softmax's kernel by random sines and cosines, with weights of both signs")
class PerformerTrig(FeatureAttention):
    """exp(q.k) = exp(|q|^2/2) exp(|k|^2/2) exp(-|q - k|^2/2), q and k divided by D^(1/4); the Gaussian is estimated by
    sines and cosines (Rahimi and Recht 2007), the first factor cancels, the second is the weight of the key.

    Key weights are relative to the largest so far: exp(|k_j|^2/2 - p_j), p_j = max_{i <= j} |k_i|^2/2, and a key that
    raises the maximum scales the past by exp(p_{j-1} - p_j). This equals the formula, cannot overflow, and leaks no
    future. Weights have signed noise M^(-1/2), and their sum may approach 0: it is kept above `floor` times the sum of
    the visible key weights, which is the sum of weights if all keys are equal to the query.
    """

    rotary_ok = "products with random vectors are relative in their mean only"
    source = "Choromanski et al. 2021, arXiv 2009.14794, section 2.3"
    frequencies: Tensor

    def __init__(self, geometry: Geometry, *, features: int = 128, floor: float = 0.05, form: Form = "auto"):
        super().__init__(geometry, form)
        check_features(features, even=True)
        check_floor(floor)
        self.features, self.floor = features, floor
        self.floor_share = EvaluationMean()
        self.register_buffer("frequencies", draw_frequencies(geometry, features // 2, "performer_trig"))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        with torch.autocast(q.device.type, enabled=False):
            q, k = to_float32(q, k)
            fq, fk, options = self._weighed(q, k, causal, keep)
            share = None if self.training else self.floor_share
            return linear_attention(fq, fk, v, causal=causal, form=self.form, keep=keep, floor_share=share, **options)

    def diagnostics(self) -> dict[str, float]:
        return floor_diagnostics(self.floor_share)

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        return self._weighed(q, k, self.geometry.causal)

    def _weighed(self, q: Tensor, k: Tensor, causal: bool, keep: Keep = None) -> FeaturePair:
        """Features with the weights of the keys, and with their decays where causal."""
        fq, fk, exponent = self._gaussian_features(q, k)
        if keep is not None:  # exponents are never negative, so the 0 of a key that is left out raises no maximum
            exponent = exponent.masked_fill(~keep[:, None], 0.0)
        options: Options = {"floor": self.floor}
        if causal:
            peak = exponent.cummax(-1).values
            options["log_decay"] = torch.cat([peak[..., :1], peak[..., :-1]], dim=-1) - peak
        else:
            peak = exponent.amax(-1, keepdim=True)
        options["key_weight"] = (exponent - peak).exp()
        return FeaturePair(fq, fk, options)

    def start(self, batch: int) -> State:
        sums, visible = linear_start(self.qkv.weight, batch, self.geometry.heads, self.features, self.geometry.head_dim)
        return sums, visible, torch.zeros_like(visible)  # the largest |k|^2/2 so far

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        *sums, before = state
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, exponent = self._gaussian_features(*to_float32(q, k))
            peak = torch.maximum(before, exponent)
            options: Options = {"key_weight": (exponent - peak).exp(), "log_decay": before - peak, "floor": self.floor}
            out, after = linear_step(fq, fk, v, tuple(sums), **options)
            return out, (*after, peak)

    def _gaussian_features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the Gaussian for q and k, and |k|^2/2 (B, H, N)."""
        q, k = (self.geometry.head_dim**-0.25 * x for x in (q, k))
        fq, fk = (trigonometric_features(x, self.frequencies) for x in (q, k))
        return fq, fk, k.square().sum(-1) / 2

"""Random feature attention: a Gaussian kernel on the sphere, and a gate that lets the past decay."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.attention.engines.features import draw_frequencies, trigonometric_features, unit_norm
from fourierformer.attention.engines.floor import check_floor, floor_diagnostics
from fourierformer.attention.engines.recurrence import Form, Options, linear_attention, linear_step
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair, check_features
from fourierformer.errors import SetupError
from fourierformer.marks import mark

GATE_BIAS = 3.0  # before training: g = sigmoid(3) = 0.95, a memory of 1 / (1 - g) = 21 tokens
# Of the gate: 1 - g = exp(-60) = 9e-27 is a memory of 1e26 tokens. From 104 on, 1 - g would be 0 in float32 for all
# keys of a sequence, and their average 0 / 0.
LARGEST_LOGIT = 60.0


@register("rfa", "random sines and cosines of unit-norm q and k, with a gate where causal")
class RFA(FeatureAttention):
    """w_ij = exp(-|sigma (q_i - k_j)|^2 / 2) by random features, for q and k of norm 1 (Peng et al. 2021).

    phi(x) = [sin omega.x, cos omega.x], omega = sigma * N(0, I), with one learned scale per coordinate and head,
    initialised to sigma = 1. On the sphere at sigma = 1 the weights are exp(q.k - 1): softmax of cosines, all between
    exp(-2) and 1, so their noise of M^(-1/2) is small in comparison. `floor` keeps the signed sum from 0.

    With the gate g_t = sigmoid(w.x_t + b) per head (section 3.2), the sums are running means with a memory:
    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T. It needs a past, so `gate=auto` enables it in causal models.
    Padding writes nothing and causes no decay. No maps: with the gate the weights depend on the layer's input too.
    Differs from the source in its frequencies, drawn once: there training takes others of a pool at every step.
    """

    rotary_ok = "products with random vectors are relative in their mean only"
    qk_norm_ok = "it divides queries and keys by their norms"
    source = "Peng et al. 2021, arXiv 2103.02143"
    frequencies: Tensor
    maps = Attention.maps

    def __init__(
        self, geometry: Geometry, *,
        features: int = 128, gate: bool | Literal["auto"] = "auto", floor: float = 0.05, form: Form = "auto",
    ):  # fmt: skip
        super().__init__(geometry, form)
        check_features(features, even=True)
        check_floor(floor)
        if gate is True and not geometry.causal:
            raise SetupError("attention.gate=true needs a past, and a bidirectional model has none: use gate=auto")
        self.features, self.floor = features, floor
        self.register_buffer("frequencies", draw_frequencies(geometry, features // 2, "rfa"))
        self.floor_share = EvaluationMean()
        self.sigma = nn.Parameter(torch.ones(geometry.heads, 1, geometry.head_dim))
        mark(self, "sigma", no_weight_decay=True)
        self.gate = None
        if geometry.causal if gate == "auto" else gate:
            self.gate = nn.Linear(geometry.dim, geometry.heads, bias=False)
            self.gate_bias = nn.Parameter(torch.full((geometry.heads,), GATE_BIAS))
            self.cross_ok = (
                "its gate needs the past of the same sequence: use attention.gate=false or bidirectional layers"
            )

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        gate, causal, form = self._gate(x), self.geometry.causal and not cross, self.form
        share = None if self.training else self.floor_share
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, options = self.phi(*to_float32(q, k))
            return linear_attention(fq, fk, v, causal=causal, form=form, keep=keep, floor_share=share, **options | gate)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        gate = self._gate(x)
        with torch.autocast(q.device.type, enabled=False):
            fq, fk, options = self.phi(*to_float32(q, k))
            return linear_step(fq, fk, v, state, **options | gate)

    def diagnostics(self) -> dict[str, float]:
        numbers = {"sigma": self.sigma.detach().abs().mean().item(), **floor_diagnostics(self.floor_share)}
        if self.gate is not None:
            numbers["gate_bias"] = self.gate_bias.detach().mean().item()
        return numbers

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        """omega.x = (sigma * N(0, I)).x = N(0, I).(sigma * x)."""
        fq, fk = (trigonometric_features(self.sigma * unit_norm(x), self.frequencies) for x in (q, k))
        return FeaturePair(fq, fk, {"floor": self.floor})

    def _gate(self, x: Tensor) -> Options:
        """x (B, N, dim) -> log g and 1 - g, (B, H, N) each, as options of linear_attention; {} without a gate."""
        if self.gate is None:
            return {}
        (logits,) = to_float32(self.gate(x).mT)
        logits = (logits + self.gate_bias[:, None]).clamp_max(LARGEST_LOGIT)
        return {"log_decay": F.logsigmoid(logits), "key_weight": torch.sigmoid(-logits)}

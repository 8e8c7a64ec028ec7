"""The delta rule as attention: the fast weight memory; DeltaNet, with normalised keys; and the same with a gate."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, State, to_float32
from fourierformer.attention.engines.decay import TokenDecay
from fourierformer.attention.engines.delta_rule import delta_rule, delta_step
from fourierformer.attention.engines.features import (
    elu_features,
    orthogonal_gaussian,
    positive_exponents,
    unit_norm,
)
from fourierformer.attention.engines.head_norm import head_norm
from fourierformer.attention.engines.recurrence import Form
from fourierformer.attention.mechanisms.dpfp import check_nu, dpfp_features
from fourierformer.errors import check_range
from fourierformer.seeds import seed_of

SUM_EPS = 1e-5  # added to the sum of features: those of dpfp can all be 0

Feature = Literal["dpfp", "elu", "performer"]


class DeltaAttention(Attention):
    """Attention by the delta rule (engines/delta_rule.py) with beta_t = sigmoid(w.x_t) per head.

    No maps: the weights of the values depend on beta, hence on x.
    """

    rotary_ok = "its features are functions of single coordinates, which a rotation mixes"
    full_ok = "the delta rule overwrites in the order of writing, and the patches of an image have no order"
    cross_ok = "a query reads the memory of its own position, and there is none in another sequence"
    padding_ok = True

    def __init__(self, geometry: Geometry, form: Form):
        super().__init__(geometry)
        self.form = form
        self.beta = nn.Linear(geometry.dim, geometry.heads, bias=False)

    def rates(self, x: Tensor, keep: Keep = None) -> Tensor:
        """beta (B, H, N) from the layer's input (B, N, dim); padding writes nothing."""
        (logits,) = to_float32(self.beta(x).transpose(1, 2))
        rates = logits.sigmoid()
        return rates if keep is None else rates.masked_fill(~keep[:, None], 0.0)


@register("fast_weight", "a memory that overwrites: the delta rule, with a learned writing rate per head and token")
class FastWeight(DeltaAttention):
    """o_t = S_t^T phi(q_t) / sqrt(D) with S_t of the delta rule and beta_t = sigmoid(w.x_t) per head.

    phi is positive and divided by its sum, so that writes and reads are weighted averages over the rows of the memory,
    without a denominator. `dpfp` has 2 D nu features, `elu` D, `performer` about D log D random ones (divided by their
    sum, a softmax).
    """

    cost, state, source = "N M C, M = 2 D nu", "M C", "Schlag et al. 2021, arXiv 2102.11174"
    frequencies: Tensor  # of the performer's features

    def __init__(self, geometry: Geometry, *, feature: Feature = "dpfp", nu: int = 3, form: Form = "auto"):
        super().__init__(geometry, form)
        width = geometry.head_dim
        if feature == "dpfp":
            check_nu(nu, width)
        self.feature, self.nu = feature, nu
        random = max(1, int(width * math.log(width)))
        self.features = {"dpfp": 2 * width * nu, "elu": width, "performer": random}[feature]
        if feature == "performer":
            generator = torch.Generator().manual_seed(seed_of("fast_weight", geometry.seed, geometry.layer))
            self.register_buffer("frequencies", orthogonal_gaussian(random, width, generator).float())

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        mixed = delta_rule(self._features(q), self._features(k), v, self.rates(x, keep), form=self.form)
        return mixed / math.sqrt(self.geometry.head_dim)

    def start(self, batch: int) -> State:
        (like,) = to_float32(self.qkv.weight)
        return (like.new_zeros(batch, self.geometry.heads, self.features, self.geometry.head_dim),)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = delta_step(self._features(q), self._features(k), v, self.rates(x), state)
        return mixed / math.sqrt(self.geometry.head_dim), state

    def _features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            (x,) = to_float32(x)
            if self.feature == "performer":
                scaled = x * self.geometry.head_dim**-0.25
                return positive_exponents(scaled, self.frequencies).softmax(-1)
            features = dpfp_features(x, self.nu) if self.feature == "dpfp" else elu_features(x)
            return features * (features.sum(-1, keepdim=True) + SUM_EPS).reciprocal()  # a division's gradient is slower


@register("delta_net", "the delta rule with keys of norm 1 after a short convolution; what is read is normalised")
class DeltaNet(DeltaAttention):
    """y_t = RMSNorm(S_t^T q_t / sqrt(D)) per head, with S_t of the delta rule: the value of a key is overwritten, not
    added to, which is a step of online regression of the values on the keys.

    q and k are silu(.) divided by their norm, v = silu(.), all after a causal convolution of `conv` tokens for every
    channel (0: none), whose taps start uniform in +-1 / sqrt(conv). beta_t = sigmoid(w.x_t), doubled with
    `negative=true`: a rate above 1 turns what the memory holds for a key to the other sign (Grazzi et al. 2024, arXiv
    2411.12537). The scale of the norm is shared by the heads.
    Time N D (3 D + 112) per head in chunks; state S and the last conv - 1 inputs of the convolution.
    Differs from the source in its positions: those of the model, where the source has none.
    """

    rotary_ok = "its queries and keys pass a convolution and silu after they would be rotated"
    cost, state, source = "N D C", "C D + 9 C", "Yang et al. 2024, arXiv 2406.06484"

    def __init__(self, geometry: Geometry, *, conv: int = 4, negative: bool = False, form: Form = "auto"):
        super().__init__(geometry, form)
        check_range("attention.conv", conv, 0)
        self.conv, self.negative = conv, negative
        if conv:  # the newest token last
            taps = torch.empty(conv, 3, geometry.heads, 1, geometry.head_dim)
            self.taps = nn.Parameter(nn.init.uniform_(taps, -(conv**-0.5), conv**-0.5))
        self.scale = nn.Parameter(torch.ones(geometry.head_dim))

    def rates(self, x: Tensor, keep: Keep = None) -> Tensor:
        return super().rates(x, keep) * (2 if self.negative else 1)

    def log_decay(self, x: Tensor, keep: Keep = None) -> Tensor | None:
        """What the memory keeps at every token, (B, H, N); None: all."""
        return None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        (inputs,) = to_float32(torch.stack((q, k, v), dim=1))
        if keep is not None:
            inputs = inputs.masked_fill(~keep[:, None, None, :, None], 0.0)
        inputs = F.pad(inputs, (0, 0, self._kept(), 0))
        log_decay = self.log_decay(x, keep)
        mixed = delta_rule(*self._features(inputs), self.rates(x, keep), log_decay=log_decay, form=self.form)
        return self._read(mixed, x).to(v.dtype)

    def start(self, batch: int) -> State:
        (like,) = to_float32(self.qkv.weight)
        heads, width = self.geometry.heads, self.geometry.head_dim
        return like.new_zeros(batch, heads, width, width), like.new_zeros(batch, 3, heads, self._kept(), width)

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        memory, inputs = state
        inputs = torch.cat([inputs, torch.stack((q, k, v), dim=1).to(inputs.dtype)], dim=-2)
        features, log_decay = self._features(inputs), self.log_decay(x)
        mixed, (memory,) = delta_step(*features, self.rates(x), (memory,), log_decay=log_decay)
        return self._read(mixed, x).to(v.dtype), (memory, inputs[..., 1:, :])

    def _kept(self) -> int:
        """Earlier tokens that the convolution of a token needs."""
        return max(self.conv - 1, 0)

    def _features(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k of norm 1, and v, (B, H, N, D) each, of inputs (B, 3, H, conv - 1 + N, D)."""
        if self.conv:
            tokens = inputs.shape[-2] - self._kept()
            terms = (tap * inputs[..., s : s + tokens, :] for s, tap in enumerate(self.taps.to(inputs.dtype)))
            inputs = sum(terms, start=inputs.new_zeros(()))
        q, k, v = F.silu(inputs).unbind(1)
        return unit_norm(q), unit_norm(k), v

    def _read(self, mixed: Tensor, x: Tensor) -> Tensor:
        return head_norm(mixed / math.sqrt(self.geometry.head_dim), self.scale)


@register("gated_delta_net", "as delta_net, and the memory decays at every token by a gate; the output is gated too")
class GatedDeltaNet(DeltaNet):
    """y_t = RMSNorm(S_t^T q_t / sqrt(D)) silu(W x_t), S_t as in `delta_net` after a decay of S_(t-1) by a_t per head.

    log a_t = -A softplus(w.x_t + b), see engines/decay.py. Writing removes what the memory holds for one key, decay all
    of it. Without decay and output gate this is `delta_net`. Time and state as there.
    Differs from the source in its values, as wide as keys (there twice as wide), and its positions: those of the model,
    where the source has none.
    """

    source = "Yang et al. 2024, arXiv 2412.06464"

    def __init__(self, geometry: Geometry, *, conv: int = 4, negative: bool = False, form: Form = "auto"):
        super().__init__(geometry, conv=conv, negative=negative, form=form)
        self.decay = TokenDecay(geometry)
        self.gate = nn.Linear(geometry.dim, geometry.dim, bias=False)

    def log_decay(self, x: Tensor, keep: Keep = None) -> Tensor:
        log_decay, _ = self.decay(x)
        return log_decay if keep is None else log_decay.masked_fill(~keep[:, None], 0.0)

    def _read(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super()._read(mixed, x) * F.silu(self._split(self.gate(x)))

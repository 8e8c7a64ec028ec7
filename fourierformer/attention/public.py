"""Fourier attention as a layer for any model: `fourierformer.FourierAttention`."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer import fourier_attention
from fourierformer.attention.mechanisms.fourier import matched_radius
from fourierformer.errors import SetupError
from fourierformer.kernels.sinc import check_backend
from fourierformer.kernels.sinc.checks import check_power_and_eps
from fourierformer.marks import mark


class FourierAttention(nn.Module):
    """Multi-head Fourier attention with its projections, for a model of your own.

    It replaces torch.nn.MultiheadAttention(dim, heads, batch_first=True), with the masks of torch's
    scaled_dot_product_attention: True takes part. So invert the boolean masks of MultiheadAttention, where True is left
    out: keep = ~key_padding_mask, attn_mask = ~attn_mask.

    Args:
        dim: width of a token.
        heads: number of heads; must divide dim.
        kv_heads: number of heads of keys and values, a divisor of heads (grouped-query attention); default: heads.
        causal: query i sees keys 0 .. i + M - N, so that the last query sees every key.
        dropout: probability with which a normalised weight becomes 0 in training; slower than 0.
        bias: biases in the four projections.
        radius: initial value of the learned radius, or "matched", as sharp as softmax: sqrt(3 / (power sqrt(D))).
        radius_shape: one radius for the layer ("scalar"), one per head, or one per coordinate of a head.
        power: even, at least 2; the paper uses 4.
        eps: added to the sum of weights: 0 is the paper's formula, 1e-6 the authors' code.
        backend: as in `fourier_attention`.

    Examples:
        >>> import torch
        >>> from fourierformer import FourierAttention
        >>> layer = FourierAttention(dim=64, heads=4, kv_heads=2, causal=True)
        >>> x = torch.randn(2, 10, 64)  # batch 2, 10 tokens
        >>> keep = torch.arange(10) < torch.tensor([[10], [7]])  # the second row ends in three of padding
        >>> layer(x, keep=keep).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self, dim: int, heads: int, *,
        kv_heads: int | None = None, causal: bool = False, dropout: float = 0.0, bias: bool = True,
        radius: float | Literal["matched"] = "matched",
        radius_shape: Literal["scalar", "head", "coordinate"] = "scalar",
        power: int = 4, eps: float = 0.0, backend: str = "auto",
    ):  # fmt: skip
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check(dim, heads, kv_heads, dropout, radius_shape)
        check_power_and_eps(power, eps)
        check_backend(backend)
        self.width = dim // heads
        self.causal, self.dropout, self.power, self.eps, self.backend = causal, dropout, power, eps, backend
        self.q_proj = nn.Linear(dim, dim, bias=bias)
        self.k_proj = nn.Linear(dim, kv_heads * self.width, bias=bias)
        self.v_proj = nn.Linear(dim, kv_heads * self.width, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        self.initial_radius = matched_radius(self.width, power) if radius == "matched" else _number(radius)
        shape = {"scalar": (), "head": (heads, 1), "coordinate": (1, self.width)}[radius_shape]
        self.radius = nn.Parameter(torch.full(shape, self.initial_radius))
        mark(self, "radius", no_weight_decay=True)

    def reset_parameters(self) -> None:
        """Set the radius to its initial value, as after `to_empty`; the projections have a method of this name too."""
        nn.init.constant_(self.radius, self.initial_radius)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
        keep: Tensor | None = None, attn_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """query (B, N, dim), key and value (B, M, dim) -> (B, N, dim). key is query, and value is key, unless given.

        keep (B, M), bool: False for padding. attn_mask: broadcasts to (B, heads, N, M); bool, True for pairs that take
        part, or float, added to the logarithms of the weights.
        """
        key = query if key is None else key
        value = key if value is None else value
        dim = self.q_proj.in_features
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.dim() != 3 or x.shape[2] != dim:
                raise ValueError(f"{name} must be (batch, tokens, dim = {dim}), got {tuple(x.shape)}")
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for projection, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        mixed = fourier_attention(
            q, k, v, self.radius,
            power=self.power, eps=self.eps, causal=self.causal, keep=keep, attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0, enable_gqa=True, backend=self.backend,
        )  # fmt: skip
        return self.out_proj(mixed.transpose(1, 2).flatten(-2))

    def extra_repr(self) -> str:
        shape = tuple(self.radius.shape) or "scalar"
        return f"causal={self.causal}, power={self.power}, eps={self.eps}, radius={shape}"


def _number(radius: float | str) -> float:
    try:
        number = float(radius)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SetupError(f"radius is a number, or 'matched', got {radius!r}")
    return number


def _check(dim: int, heads: int, kv_heads: int, dropout: float, radius_shape: str) -> None:
    if heads < 1 or dim % heads:
        raise SetupError(f"dim {dim} is not divisible by heads {heads}: choose heads that divide dim")
    if kv_heads < 1 or heads % kv_heads:
        raise SetupError(f"heads {heads} is not divisible by kv_heads {kv_heads}: choose kv_heads that divide heads")
    if not 0 <= dropout <= 1:
        raise SetupError(f"dropout is a probability, from 0 to 1, got {dropout}")
    if radius_shape not in ("scalar", "head", "coordinate"):
        raise SetupError(f"radius_shape is 'scalar', 'head' or 'coordinate', got {radius_shape!r}")

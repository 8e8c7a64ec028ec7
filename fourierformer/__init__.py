"""FourierFormer (NeurIPS 2022): attention by products of sinc kernels, and everything needed to compare it with others.

`import fourierformer` is light: torch is imported when a function is first called, and timm only by who uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__version__ = "0.1.0"
__all__ = ["available_attentions", "fourier_attention"]


def fourier_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    radius: Tensor | float,
    *,
    power: int = 4,
    eps: float = 0.0,
    causal: bool = False,
    keep: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Fourier attention: a softmax-free attention whose weights are products of sinc kernels.

    For query i and key j, with sinc(z) = sin(z) / z and sinc(0) = 1,

        w_ij = product over d of sinc(radius * (q_id - k_jd)) ** power
        y_i  = sum_j w_ij v_j / (eps + sum_j w_ij)

    It is the Nadaraya-Watson estimate of the value at q_i with the generalised Fourier integral estimator as the
    density: a token attends to keys NEAR its query. The larger the radius, the nearer they have to be; radius -> 0
    averages over all keys.

    Args:
        q: queries, (batch, heads, N, D).
        k: keys, (batch, heads, M, D).
        v: values, (batch, heads, M, Dv).
        radius: a number, or a tensor of shape () for one radius, (heads, 1) for one per head, (1, D) for one per
            coordinate, or (heads, D). A tensor may require a gradient; its sign does not matter.
        power: even, at least 2; the paper uses 4. Odd powers would give negative weights and are refused.
        eps: added to the sum of the unnormalised weights. 0 is Definition 1 of the paper; 1e-6 is what its authors'
            code does. With eps > 0 a query far from every key gets an output near 0 instead of the value of the least
            distant key.
        causal: query i sees keys 0 .. i + M - N, so that the last query sees every key. Queries that see no key get 0.
        keep: (batch, M), bool. False for keys that no query may see, such as padding.
        backend: "auto", "fused" (Triton on an NVIDIA GPU), "compiled" (a CPU, built with its C++ compiler at the first
            use), "portable" (any device) or "reference" (the formula as printed, N x M x D numbers at a time). The
            first three need memory linear in the number of tokens.

    Returns:
        (batch, heads, N, Dv), in the dtype of q. Half-precision inputs are computed in float32.

    Examples:
        >>> import torch
        >>> from fourierformer import fourier_attention
        >>> q, k, v = torch.randn(3, 2, 8, 256, 16)  # batch 2, 8 heads, 256 tokens, 16 coordinates each
        >>> fourier_attention(q, k, v, radius=2.0, causal=True).shape
        torch.Size([2, 8, 256, 16])
    """
    import torch

    from fourierformer.kernels.sinc import sinc_attention

    if not isinstance(radius, torch.Tensor):
        radius = torch.tensor(float(radius), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    return sinc_attention(q, k, v, radius, power=power, eps=eps, causal=causal, keep=keep, backend=backend)


def available_attentions() -> list[str]:
    """Names of every attention that a model can be built with (`attention=<name>` on the command line)."""
    from fourierformer.attention import available

    return list(available())

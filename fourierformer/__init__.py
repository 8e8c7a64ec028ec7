"""FourierFormer (NeurIPS 2022): attention by products of sinc kernels, and everything needed to compare it with others.

`import fourierformer` is light: torch is imported at the first call of a function, timm only for image models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from fourierformer.attention.public import FourierAttention as FourierAttention
    from fourierformer.tasks.trained import TrainedModel

__version__ = "0.1.0"
__all__ = ["FourierAttention", "available_attentions", "fourier_attention", "from_pretrained", "load_run"]


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
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
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
        attn_mask: broadcasts to (batch, heads, N, M), as in torch's scaled_dot_product_attention: bool, True for pairs
            that take part, or float, added to log w_ij; it may require a gradient. Slower than `keep` and `causal`,
            because only the portable backend has it; a bool mask of shape (batch, 1, 1, M) is taken as `keep`.
        dropout_p: the probability with which a normalised weight becomes 0; the others grow by 1 / (1 - dropout_p).
            Portable backend only, so slower. Applied whenever it is not 0: pass 0 in evaluation.
        enable_gqa: k and v may have fewer heads, a divisor of q's; each serves a group of neighbouring query heads.
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
    from fourierformer.kernels.sinc.checks import check_radius_is_number, check_tensors, mask_of_keys, repeat_heads

    masks = {"keep": keep, "attn_mask": attn_mask}
    check_tensors(q=q, k=k, v=v, **{name: mask for name, mask in masks.items() if mask is not None})
    if not isinstance(radius, torch.Tensor):
        check_radius_is_number(radius)
        # filled on the device: for the copy of a number of the host, the host would wait for a GPU
        radius = torch.full((), float(radius), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    if enable_gqa:
        k, v = repeat_heads(q, k, v)
    of_keys = None if attn_mask is None else mask_of_keys(attn_mask, q, k)
    if of_keys is not None:
        if keep is None:
            keep, attn_mask = of_keys, None
        elif (keep.dtype, keep.shape) == (torch.bool, of_keys.shape):
            keep, attn_mask = keep & of_keys, None
    return sinc_attention(
        q, k, v, radius,
        power=power, eps=eps, causal=causal, keep=keep, mask=attn_mask, dropout=dropout_p, backend=backend,
    )  # fmt: skip


def available_attentions() -> list[str]:
    """Names of every attention that a model can be built with (`attention=<name>` on the command line).

    Examples:
        >>> import fourierformer
        >>> [name for name in fourierformer.available_attentions() if name.startswith("gaussian")]
        ['gaussian', 'gaussian_full']
    """
    from fourierformer.attention import available

    return list(available())


def load_run(run: Path | str, device: str = "auto", *, last: bool = False, averaged: bool = False) -> TrainedModel:
    """The trained model of a run directory, ready to use; its data set is not needed.

    What it can do depends on its task: a language model has `generate(prompt)`, a masked one `fill("a [mask] text")`,
    an encoder-decoder `answer(text)`, an image classifier `classify(image)` and `transform`. `model` is the module.

    Args:
        run: the directory, as runs/builtin/lm_tiny-fourier-s1-0a1b2c3d.
        device: "auto", "cpu", "cuda" or "cuda:N".
        last: the newest checkpoint in place of the best.
        averaged: the moving average of the weights, where the run kept one.

    Examples:
        >>> import fourierformer
        >>> model = fourierformer.load_run("runs/my_run")
        >>> text = model.generate("the function returns", tokens=20, temperature=0.8)
        >>> len(model.encode("one two three"))
        3
    """
    from fourierformer.runs import trained

    return trained.load_run(run, device, last=last, averaged=averaged)


def from_pretrained(name: Path | str, device: str = "auto") -> TrainedModel:
    """The trained model of a folder that scripts/export.py wrote, or of a repository of the Hugging Face hub.

    It is what `load_run` returns, and its outputs are equal bit by bit.

    Args:
        name: a folder, or "owner/name" on the hub.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Examples:
        >>> import fourierformer
        >>> model = fourierformer.from_pretrained("exported/my_model")
        >>> model.step == fourierformer.load_run("runs/my_run").step
        True
    """
    from fourierformer.runs import trained

    return trained.from_pretrained(name, device)


def __getattr__(name: str) -> object:
    """The public classes, imported at their first use."""
    if name == "FourierAttention":
        from fourierformer.attention.public import FourierAttention

        return FourierAttention
    raise AttributeError(f"module 'fourierformer' has no attribute '{name}'")

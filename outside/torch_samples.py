"""torch: `fourier_attention` takes the sample inputs of scaled_dot_product_attention."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fourierformer import fourier_attention
from fourierformer.errors import first_line
from outside.cases import Case, Skipped


def sdpa_cases(_: Path) -> Iterator[Case]:
    """The sample inputs of scaled_dot_product_attention: 4 dimensions, a mask of pairs in place of torch's causality,
    which counts from the first query and not from the last."""
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float64)):
        yield f"sample {number}", partial(check_sdpa, sample.input, *sample.args, **sample.kwargs)


def check_sdpa(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> None:  # fmt: skip
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    try:
        y = fourier_attention(q, k, v, 0.7, attn_mask=attn_mask, dropout_p=dropout_p, enable_gqa=enable_gqa)
    except ValueError as error:
        raise Skipped(re.sub(r", got .*", "", first_line(error))) from None
    assert y.shape == expected.shape
    assert y.isfinite().all()
    if dropout_p:
        return
    log_w = 4 * torch.sinc(0.7 * (q[..., :, None, :] - k[..., None, :, :]) / torch.pi).abs().log().sum(-1)
    if attn_mask is not None:
        log_w = log_w + (attn_mask.log() if attn_mask.dtype == torch.bool else attn_mask)
    torch.testing.assert_close(y, log_w.softmax(-1) @ v)

"""Softmax by torch's fused kernels, whatever the widths of queries, keys and values."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fourierformer.attention.engines.dot_product import dot_product_attention
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, tokens

WIDTHS = [  # queries and keys are wider or narrower than values
    *((name, {}) for name in ("gaussian", "gaussian_full", "kde", "differential")),
    ("elliptical", {"kernel": "gaussian"}),
]


@BOTH
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize(("coordinates", "values"), [(5, 5), (5, 3), (4, 9), (17, 16)])
def test_softmax_of_any_widths(coordinates, values, scale, causal):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, 7, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (coordinates, coordinates, values)
    )
    logits = q @ k.mT * (coordinates**-0.5 if scale is None else scale)
    if causal:
        logits = logits.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    expected, found = logits.softmax(-1) @ v, dot_product_attention(q, k, v, causal=causal, scale=scale)
    torch.testing.assert_close(found, expected, **EXACT)
    toward = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = (torch.autograd.grad(y, (q, k, v), toward) for y in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@BOTH
@pytest.mark.parametrize(("name", "knobs"), WIDTHS)
def test_no_layer_keeps_all_logits_because_of_its_widths(name, knobs, causal):
    layer, x = layer_of(name, causal, **knobs), tokens(9)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where the kernel does not take them
        found = layer(x)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(found, layer(x), **EXACT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@BOTH
@pytest.mark.parametrize(("name", "knobs"), WIDTHS)
def test_nor_on_a_gpu_in_float32(name, knobs, causal):
    layer = layer_of(name, causal, **knobs).float()
    expected = layer(tokens(9).float())
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        found = layer.cuda()(tokens(9).float().cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)

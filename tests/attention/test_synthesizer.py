"""Synthesizer: what its weights depend on, and its formula row by row."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from tests.helpers.zoo_cases import EXACT, layer_of, projected, tokens


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["dense", "random"])
def test_every_row_is_the_formula(kind, causal):
    layer, x = layer_of("synthesizer", causal, kind=kind, length=20), tokens(9, batch=1)
    q, _, v, mixed = projected(layer, x)
    for h in range(2):
        for i in range(9):
            logits = q[0, h, i].clamp_min(0) @ layer.table[h] if kind == "dense" else layer.table[h, i]
            seen = i + 1 if causal else 9
            expected = logits[:seen].softmax(0) @ v[0, h, :seen]
            torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


def test_parameters_are_counted():
    """dense: projections of q, v and output, 3 C^2, and D x N per head; random: v and output, and N^2 per head."""
    geometry = Geometry(dim=32, heads=4, length=50, causal=True)
    for kind, expected in (("dense", 3 * 32**2 + 4 * 8 * 50), ("random", 2 * 32**2 + 4 * 50 * 50)):
        layer = attention.build("synthesizer", geometry, kind=kind)
        assert sum(p.numel() for p in layer.parameters()) == expected


def test_random_weights_are_the_same_for_every_input():
    layer = layer_of("synthesizer", kind="random")
    one, other = (layer.maps(*layer.project(tokens(9, seed=s))[:2]) for s in (1, 2))
    assert torch.equal(one, other)

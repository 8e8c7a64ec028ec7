"""Synthesizer: what its weights depend on, and its formula row by row."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from tests.helpers.zoo_cases import EXACT, layer_of, projected, tokens

KINDS = ["dense", "random", "factorized_dense", "factorized_random"]


def logit(layer, q: torch.Tensor, h: int, i: int, j: int) -> torch.Tensor:
    """Of query i and key j, for 20 positions: 4 x 5 of the dense factors."""
    hidden = q[0, h, i].clamp_min(0)
    if layer.factorized:
        first, second = layer.first[h], layer.second[h]
        if layer.by_token:
            return (hidden @ first[:, j % 5]) * (hidden @ second[:, j // 5])
        return first[i] @ second[j]
    return hidden @ layer.table[h, :, j] if layer.by_token else layer.table[h, i, j]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_the_formula(kind, causal):
    layer, x = layer_of("synthesizer", causal, kind=kind, length=20), tokens(9, batch=1)
    q, _, v, mixed = projected(layer, x)
    for h in range(2):
        for i in range(9):
            seen = i + 1 if causal else 9
            logits = torch.stack([logit(layer, q, h, i, j) for j in range(seen)])
            expected = logits.softmax(0) @ v[0, h, :seen]
            torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dense", 3 * 32**2 + 4 * 8 * 50),
        ("random", 2 * 32**2 + 4 * 50 * 50),
        ("factorized_dense", 3 * 32**2 + 4 * 8 * (8 + 7)),
        ("factorized_random", 2 * 32**2 + 4 * 50 * 2 * 8),
    ],
)
def test_parameters_are_counted(kind, expected):
    """Projections of values and output, dense: of queries; then D or N rows per head. 50 <= 8 * 7 columns."""
    layer = attention.build("synthesizer", Geometry(dim=32, heads=4, length=50, causal=True), kind=kind)
    assert sum(p.numel() for p in layer.parameters()) == expected


@pytest.mark.parametrize("length", range(1, 30))
def test_every_position_has_a_column_of_its_own_among_the_products_of_dense_factors(length):
    layer = layer_of("synthesizer", length=length, kind="factorized_dense", causal=False)
    a, b = layer.first.shape[-1], layer.second.shape[-1]
    assert length <= a * b <= length + a
    assert abs(a - b) <= 1
    x = tokens(length, batch=1)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("kind", ["random", "factorized_random"])
def test_random_weights_are_the_same_for_every_input(kind):
    layer = layer_of("synthesizer", kind=kind)
    one, other = (layer.maps(*layer.project(tokens(9, seed=s))[:2]) for s in (1, 2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_queries_alone_have_the_rows_of_all(kind):
    layer, x = layer_of("synthesizer", True, kind=kind), tokens(9)
    torch.testing.assert_close(layer(x, last=3), layer(x)[:, -3:], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_keeps_values(kind):
    assert layer_of("synthesizer", True, kind=kind).state_size(30) == 30 * 16

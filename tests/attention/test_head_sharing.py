"""Heads that mix or share: their limits, which are softmax, and their formulas head by head."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


@pytest.mark.parametrize("causal", [True, False])
def test_talking_heads_mix_logits_and_weights(causal):
    layer = layer_of("talking_heads", causal, heads=3)
    q, k, v, mixed = projected(layer, tokens(7, width=24, batch=1))
    for i in range(7):
        seen = i + 1 if causal else 7
        logits = torch.stack([k[0, h, :seen] @ q[0, h, i] / 8**0.5 for h in range(3)])
        weights = [sum(layer.of_logits[g, h] * logits[h] for h in range(3)).softmax(0) for g in range(3)]
        for g in range(3):
            row = sum(layer.of_weights[g, h] * weights[h] for h in range(3))
            torch.testing.assert_close(mixed[0, g, i], row @ v[0, g, :seen], **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_talking_heads_start_as_softmax(causal):
    geometry = Geometry(dim=16, heads=2, length=9, causal=causal)
    layer, softmax = (attention.build(name, geometry).double() for name in ("talking_heads", "softmax"))
    softmax.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(tokens(9)), softmax(tokens(9)), **EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_groups_share_keys_and_values(kv_heads, causal):
    layer, x = layer_of("grouped_query", causal, heads=4, kv_heads=kv_heads), tokens(6, width=32, batch=1)
    q, k, v = layer.qkv(x)[0].split((32, 8 * kv_heads, 8 * kv_heads), dim=-1)
    mixed = projected(layer, x)[-1]
    for h in range(4):
        own, shared = slice(8 * h, 8 * h + 8), slice(8 * (h * kv_heads // 4), 8 * (h * kv_heads // 4) + 8)
        for i in range(6):
            seen = i + 1 if causal else 6
            torch.testing.assert_close(
                mixed[0, h, i], softmax_row(q[i, own], k[:seen, shared], v[:seen, shared]), **EXACT
            )


def test_as_many_groups_as_heads_is_softmax():
    layer, softmax = layer_of("grouped_query", heads=4, kv_heads=4), layer_of("softmax", heads=4)
    softmax.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(tokens(9, width=32)), softmax(tokens(9, width=32)), **EXACT)


def test_groups_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(SetupError, match=r"kv_heads must divide model.heads=4, got 3"):
        layer_of("grouped_query", heads=4, kv_heads=3)

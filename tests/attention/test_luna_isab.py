"""Luna and induced sets: both are two steps of attention, written out; Luna's causal form is a loop over tokens."""

import math

import torch
import torch.nn.functional as F

from tests.helpers.one_by_one import one_by_one
from tests.helpers.zoo_cases import EXACT, layer_of, projected, tokens


def test_luna_packs_and_unpacks():
    layer = layer_of("luna", rows=3)
    q, k, v, mixed = projected(layer, tokens(9))
    packed = (layer.packing @ k.mT / 8**0.5).softmax(-1)
    expected = (q @ (packed @ k).mT / 8**0.5).softmax(-1) @ (packed @ v)
    torch.testing.assert_close(mixed, expected, **EXACT)


def test_causal_luna_is_a_loop_over_tokens():
    layer, x = layer_of("luna", causal=True, rows=3), tokens(9, batch=1)
    q, k, v, mixed = projected(layer, x)
    for h in range(2):
        of_k = of_v = torch.zeros(3, 8, dtype=torch.float64)
        for t in range(9):
            omega = torch.log2(1 + 2 ** (layer.packing[h] @ k[0, h, t] / 8**0.5))
            of_k, of_v = of_k + omega[:, None] * k[0, h, t], of_v + omega[:, None] * v[0, h, t]
            read = (of_k @ q[0, h, t] / (t + 1) / 8**0.5).softmax(0)
            torch.testing.assert_close(mixed[0, h, t], read @ of_v / (t + 1), **EXACT)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_lunas_weight_of_an_indifferent_token_is_one():
    """omega(0) = log2(1 + 1)."""
    layer = layer_of("luna", causal=True)
    assert torch.equal(layer._omega(torch.zeros(1, 2, 4, 8).double()), torch.ones(1, 2, 4, 16).double())
    assert F.softplus(torch.zeros(()), beta=math.log(2)) == 1


def test_isab_is_attention_twice():
    layer, x = layer_of("isab", points=3), tokens(9)
    q, k, v, mixed = projected(layer, x)
    held = ((layer.points @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
    keys, values = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer.of_points(held).chunk(2, -1))
    torch.testing.assert_close(mixed, (q @ keys.mT / 8**0.5).softmax(-1) @ values, **EXACT)


def test_isab_and_luna_do_not_know_the_order_of_tokens():
    x = tokens(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    for name in ("isab", "luna"):
        layer = layer_of(name)
        torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], **EXACT)

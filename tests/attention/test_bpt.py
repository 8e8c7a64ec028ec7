"""The binary partition tree: nodes cover every token once, keys and values are means, tiles give what masks give."""

import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines import tiles
from fourierformer.attention.mechanisms import bpt
from fourierformer.attention.mechanisms.bpt import Tree

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def build(causal: bool, prefix: int = 0, length: int = 60, **knobs) -> attention.Attention:
    torch.manual_seed(0)
    geometry = Geometry(dim=16, heads=4, length=length + prefix, causal=causal, bias=True, prefix=prefix)
    return attention.build("bpt", geometry, **knobs).double().eval()


def tokens(n: int, seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(2, n, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spans(n: int) -> list[range]:
    """The tokens of every key: n tokens, then pairs, fours and so on, the last of each level shorter."""
    found, size = [], 1
    while not found or len(found[-1]) < n:
        found += [range(start, min(start + size, n)) for start in range(0, n, size)]
        size *= 2
    return found


def walk(i: int, n: int, step: int, causal: bool) -> set[tuple[int, int]]:
    """(first token, one behind the last) of what token i sees, step by step as one would walk: away from i, at most
    `step` nodes of a size, never a node that reaches back over what was passed; what such a node leaves is taken by the
    half that it has on the far side, and counts as one of its size."""
    seen = {(i, i + 1)}
    left, right = i, i + 1
    for level in range(n.bit_length() + 1):
        size = 2**level
        for _ in range(step):
            if left > 0:
                width = size if left % size == 0 else size // 2
                seen.add((left - width, left))
                left -= width
            if right < n and not causal:
                width = size if right % size == 0 else size // 2
                seen.add((right, min(n, right + width)))
                right += width
    return seen


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n", "step"), [(1, 1), (2, 1), (7, 1), (33, 2), (64, 3), (100, 1), (100, 4), (37, 40)])
def test_what_a_token_sees_is_every_token_once(n, step, causal):
    lists, of_key = Tree(step, causal, 0).lists(torch.arange(n), n), spans(n)
    for i, keys in enumerate(lists.tolist()):
        nodes = [of_key[key] for key in keys if key >= 0]
        covered = sorted(token for node in nodes for token in node)
        assert covered == list(range(i + 1 if causal else n))
        assert {(node.start, node.stop) for node in nodes} == walk(i, n, step, causal)


@pytest.mark.parametrize("causal", [True, False])
def test_twice_the_tokens_are_one_step_more_to_each_side(causal):
    """2 step log2(N / step) keys, half of it in a causal model. The last token sees most of its past."""

    def most(n: int) -> int:
        return int((Tree(4, causal, 0).lists(torch.arange(n), n) >= 0).sum(1).max())

    sides = 1 if causal else 2
    assert 4 * (math.log2(256 / 4) - 1) < most(256) - 1 <= sides * 4 * (math.log2(256 / 4) + 1)
    assert all(0 < most(2 * n) - most(n) <= sides * 4 for n in (256, 512, 1024))


@pytest.mark.parametrize("dense", [8, 512], ids=["tiles", "masked"])
@pytest.mark.parametrize("causal", [True, False])
def test_keys_and_values_of_nodes_are_means(causal, dense, monkeypatch):
    """Over the tokens that are no padding, with a loop over queries; prefix tokens see and are seen by all."""
    monkeypatch.setattr(bpt, "DENSE", dense)
    layer, x = build(causal, prefix=2, step=2), tokens(24)
    keep = torch.rand(2, 24, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[:, 0] = True
    y = layer(x, keep=keep)
    q, k, v = layer.project(x.masked_fill(~keep[..., None], 0))
    for row in range(2):
        for i in range(24):
            if i < 2:
                nodes = [[j] for j in range(i + 1 if causal else 24)]
            else:
                nodes = [[0], [1], *([2 + j for j in range(*node)] for node in walk(i - 2, 22, 2, causal))]
            kept = [[j for j in node if keep[row, j]] for node in nodes]
            kept = [node for node in kept if node]
            keys, values = (torch.stack([t[row, :, node].mean(1) for node in kept], 1) for t in (k, v))
            weights = (q[row, :, i : i + 1] @ keys.mT / 2).softmax(-1)
            torch.testing.assert_close(y[row, i], layer.proj((weights @ values).flatten()), **EXACT)


@pytest.mark.parametrize("dense", [8, 512], ids=["tiles", "masked"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_step_of_all_tokens_is_softmax(causal, dense, monkeypatch):
    monkeypatch.setattr(bpt, "DENSE", dense)
    layer, x = build(causal, step=40), tokens(40)
    softmax = attention.build("softmax", layer.geometry).double()
    softmax.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), softmax(x), **EXACT)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_tiles_give_what_masks_give(causal, prefix, monkeypatch):
    monkeypatch.setattr(tiles, "LISTED", 1000)
    monkeypatch.setattr(bpt, "TILE", 16)
    layer, n = build(causal, prefix, length=150), 150 + prefix
    keep = torch.rand(2, n, generator=torch.Generator().manual_seed(3)) < 0.4
    keep[1, :20] = False
    for length, options in ((n, {}), (n - 40, {}), (n, {"last": 7}), (n, {"keep": keep})):
        found = []
        for dense in (8, 512):
            monkeypatch.setattr(bpt, "DENSE", dense)
            x = tokens(length).requires_grad_()
            y = layer(x, **options)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)


def test_weights_in_tiles_grow_little_faster_than_the_tokens():
    """From 2,048 to 8,192 tokens at most as N^1.2: 2 more levels of 11."""
    weights = [
        sum(t.mask.numel() for g in Tree(4, False, 0).groups(1, n, n, torch.device("cpu")) for t in g.tiles)
        for n in (2048, 8192)
    ]
    assert math.log(weights[1] / weights[0], 4) < 1.2
    assert weights[0] < 2048**2 / 4

"""Attention in hash buckets against loops, and its limit: with one bucket, softmax with shared queries and keys."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


def bucket(layer, r: int, h: int, x: torch.Tensor) -> int:
    rotated = x @ layer.rotations[r, h]
    return int(torch.cat([rotated, -rotated]).argmax())


@pytest.mark.parametrize("causal", [True, False])
def test_tokens_of_one_bucket_meet(causal):
    layer = layer_of("lsh", causal, buckets=6, rounds=2)
    q, k, v, mixed = projected(layer, tokens(20, batch=1))
    torch.testing.assert_close(k, F.normalize(q, dim=-1), **EXACT)
    alone = 0
    for h in range(2):
        for i in range(20):
            met = [
                j
                for j in range(i + 1 if causal else 20)
                if j != i and any(bucket(layer, r, h, q[0, h, i]) == bucket(layer, r, h, k[0, h, j]) for r in (0, 1))
            ]
            alone += not met
            met = met or [i]
            torch.testing.assert_close(mixed[0, h, i], softmax_row(q[0, h, i], k[0, h, met], v[0, h, met]), **EXACT)
    assert alone or not causal  # the first token of a sequence has nobody


@pytest.mark.parametrize("causal", [True, False])
def test_one_bucket_is_softmax_over_all_others(causal):
    """Rotations of 0 give every token the same hash."""
    layer = layer_of("lsh", causal)
    layer.rotations.zero_()
    q, k, v, mixed = projected(layer, tokens(9, batch=1))
    for i in range(1, 9):
        others = [j for j in range(i + 1 if causal else 9) if j != i]
        torch.testing.assert_close(mixed[0, 1, i], softmax_row(q[0, 1, i], k[0, 1, others], v[0, 1, others]), **EXACT)


def test_more_rounds_only_add_pairs():
    layer = layer_of("lsh", rounds=6)
    q, k, *_ = projected(layer, tokens(30))
    pairs = layer.hashes(q)[..., None] == layer.hashes(k)[..., None, :]
    seen = [pairs[:rounds].any(0) for rounds in range(1, 7)]
    assert all((fewer <= more).all() for fewer, more in pairwise(seen))
    assert seen[0].sum() < seen[-1].sum()


@pytest.mark.parametrize("rehash", [True, False])
def test_rotations_are_a_function_of_the_step(rehash):
    layer = layer_of("lsh", rehash=rehash)
    drawn = []
    for step in (0, 1, 5, 1):
        layer.begin_step(step)
        drawn.append(layer.rotations.clone())
    assert torch.equal(drawn[1], drawn[3])
    assert torch.equal(drawn[1], drawn[2]) != rehash


def test_an_odd_number_of_buckets_is_refused():
    with pytest.raises(SetupError, match="buckets must be even, directions and their opposites, got 5"):
        layer_of("lsh", buckets=5)

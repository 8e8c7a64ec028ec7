"""Routing: membership by plain loops, the moving average by hand, and its limit, which is softmax."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.routing import unit
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, projected, softmax_row, tokens


@BOTH
def test_one_cluster_is_softmax(causal):
    layer, softmax = layer_of("routing", causal, clusters=1, local_heads=0), layer_of("softmax", causal)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(tokens(20)), softmax(tokens(20)), **EXACT)


def nearest(layer, head: int, x: torch.Tensor) -> int:
    return int((layer.centroids[head] @ unit(x)).argmax())


@BOTH
def test_each_query_meets_the_keys_of_its_centroid(causal):
    """Three heads, the first of them local. Bidirectional: the ceil(20 / 3) = 7 keys nearest to the centroid."""
    layer = layer_of("routing", causal, heads=3, clusters=3, local_heads=1, window=2)
    q, k, v, mixed = projected(layer, tokens(20, width=24, batch=1))
    for i in range(20):
        past = range(i + 1 if causal else 20)
        near = [j for j in past if abs(i - j) <= 2]
        torch.testing.assert_close(mixed[0, 0, i], softmax_row(q[0, 0, i], k[0, 0, near], v[0, 0, near]), **EXACT)
        for h in (1, 2):
            own = nearest(layer, h - 1, q[0, h, i])
            if causal:
                met = [j for j in past if j == i or nearest(layer, h - 1, k[0, h, j]) == own]
            else:
                met = sorted(past, key=lambda j: -(layer.centroids[h - 1, own] @ unit(k[0, h, j])).item())[:7]
            torch.testing.assert_close(mixed[0, h, i], softmax_row(q[0, h, i], k[0, h, met], v[0, h, met]), **EXACT)


def test_it_begins_with_centroids_on_the_sphere_and_half_of_the_heads_local():
    layer = attention.build("routing", Geometry(64, 8, 20, True))
    assert layer.local_heads == 4
    torch.testing.assert_close(layer.centroids.norm(dim=-1), torch.ones(4, 16))


def one_step(layer, batches, good: float = 1.0) -> list[torch.Tensor]:
    layer.train()
    layer.begin_step(0)
    added = []
    for x in batches:
        layer(x)
        added.append(layer.auxiliary_loss(torch.zeros(len(x)).double()))
    layer.end_step(lambda x: x, torch.tensor(good))
    return added


def test_centroids_move_by_the_papers_average():
    """mu <- unit(decay mu + (1 - decay) / 2 (sum of its queries + sum of its keys)), the sums averaged over rows; the
    loss of a row has the mean squared distance to the centroids added."""
    layer = layer_of("routing", causal=True, clusters=3, local_heads=0, decay=0.9, commitment=0.5)
    before, x = layer.centroids.clone(), tokens(12)
    q, k, *_ = projected(layer, x)
    sums, distances = torch.zeros_like(before), torch.zeros(2, dtype=torch.float64)
    for b in range(2):
        for h in range(2):
            for t in range(12):
                for row in (unit(q[b, h, t]), unit(k[b, h, t])):
                    c = int((before[h] @ row).argmax())
                    sums[h, c] += row.detach() / 2 / 2
                    distances[b] += (row - before[h, c]).square().sum().detach() / (2 * 2 * 12)
    (added,) = one_step(layer, [x])
    torch.testing.assert_close(added, 0.5 * distances, **EXACT)
    expected = torch.nn.functional.normalize(0.9 * before + 0.1 * sums, dim=-1)
    torch.testing.assert_close(layer.centroids, expected, **EXACT)
    assert not torch.equal(expected, before)


def test_a_centroid_without_members_stays_where_it_is_though_nothing_of_the_past_counts():
    layer = layer_of("routing", causal=True, clusters=16, local_heads=0, decay=0.0)
    before = layer.centroids.clone()
    one_step(layer, [tokens(4)])
    norms = layer.centroids.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)
    stay = (layer.centroids == before).all(-1)
    assert stay.any()
    assert not stay.all()


@BOTH
def test_the_commitment_pulls_queries_and_keys_to_their_centroids(causal):
    """The gradient of 0.5 mean |unit(x) - mu|^2, mu constant."""
    layer = layer_of("routing", causal, clusters=3, local_heads=0, commitment=0.5).train()
    q, k, v = (t.detach().requires_grad_() for t in layer.project(tokens(12)))
    layer.mix(q, k, v, v)
    found = torch.autograd.grad(layer.auxiliary_loss(torch.zeros(2).double()).sum(), (q, k))
    expected = 0.0
    for h in range(2):
        for x in (q[:, h], k[:, h]):
            own = layer.centroids[h, (unit(x) @ layer.centroids[h].T).argmax(-1)]
            expected = expected + 0.5 * (unit(x) - own).square().sum() / (2 * 2 * 12)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (q, k)), rtol=0, atol=1e-12)
    assert all(gradient.abs().max() > 1e-4 for gradient in found)


def test_a_bad_step_moves_nothing_and_evaluation_gathers_nothing():
    layer, x = layer_of("routing", clusters=3), tokens(12)
    before = layer.centroids.clone()
    one_step(layer, [x * float("nan")], good=0.0)
    assert torch.equal(layer.centroids, before)
    layer.begin_step(1)
    layer.eval()(x)
    assert layer.rows == 0
    layer.train()(x, keep=torch.zeros(2, 12, dtype=torch.bool))
    assert not layer.sums.any()  # padding belongs to no cluster


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"local_heads": 2}, "must leave at least one of model.heads=2, got 2"),
        ({"decay": 1.0}, "attention.decay=1.0: must be at least 0 and less than 1"),
        ({"clusters": 0}, "attention.clusters=0: must be at least 1"),
    ],
)
def test_impossible_knobs_are_refused(knobs, message):
    with pytest.raises(SetupError, match=message):
        layer_of("routing", **knobs)

"""Attention over a choice of keys or queries: the choice against plain loops, and the limits, which are softmax."""

import math

import pytest
import torch

from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


def softmax_like(layer):
    softmax = layer_of("softmax", layer.geometry.causal)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    return softmax


@pytest.mark.parametrize(
    ("name", "causal", "knobs"),
    [
        ("topk", True, {"keys": 40}),
        ("topk", False, {"keys": 40}),
        ("informer", True, {"factor": 99.0}),
        ("informer", False, {"factor": 99.0}),
        ("clustered", False, {"keys": 40}),
        ("clustered", False, {"clusters": 400, "keys": 0, "bits": 400}),
    ],
)
def test_choosing_everything_is_softmax(name, causal, knobs):
    """Clusters of one query each are queries."""
    layer = layer_of(name, causal, **knobs)
    torch.testing.assert_close(layer(tokens(20)), softmax_like(layer)(tokens(20)), **EXACT)


def test_the_heaviest_keys_are_those_of_the_largest_logits_where_weights_underflow():
    """Logits hundreds apart: beyond about 100 weights in float32 are 0, but a member may prefer such a key."""
    layer = layer_of("clustered", clusters=4, keys=8)
    q, k, v = (s * torch.randn(1, 2, 60, 8, generator=torch.Generator().manual_seed(s)) for s in (20, 21, 1))
    exact = layer.mix(*(x.double() for x in (q, k, v, v)))
    torch.testing.assert_close(layer.mix(q, k, v, v).double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_topk_is_softmax_over_the_largest_logits(causal):
    layer = layer_of("topk", causal, keys=4)
    q, k, v, mixed = projected(layer, tokens(12, batch=1))
    for h in range(2):
        for i in range(12):
            seen = i + 1 if causal else 12
            chosen = sorted(range(seen), key=lambda j: -(q[0, h, i] @ k[0, h, j]).item())[:4]
            torch.testing.assert_close(
                mixed[0, h, i], softmax_row(q[0, h, i], k[0, h, chosen], v[0, h, chosen]), **EXACT
            )


@pytest.mark.parametrize("causal", [True, False])
def test_informer_chooses_the_queries_far_from_uniform(causal):
    """u = ceil(1.5 ln 20) = 5 of 20; causal by the rank among the queries so far."""
    layer = layer_of("informer", causal, factor=1.5)
    q, k, v, mixed = projected(layer, tokens(20, batch=1))
    for h in range(2):
        measures, active = [], []
        for i in range(20):
            seen = i + 1 if causal else 20
            logits = k[0, h, :seen] @ q[0, h, i] / 8**0.5
            measures.append((logits.max() - logits.mean()).item())
        for i in range(20):
            seen = i + 1 if causal else 20
            larger = sum(other > measures[i] for other in measures[:seen])
            chosen = larger < max(1, math.ceil(1.5 * math.log(seen)))
            active.append(chosen)
            row = softmax_row(q[0, h, i], k[0, h, :seen], v[0, h, :seen]) if chosen else v[0, h, :seen].mean(0)
            torch.testing.assert_close(mixed[0, h, i], row, **EXACT)
        assert causal or sum(active) == 5


def test_clusters_of_equal_queries_lose_nothing():
    """Four different queries, each five times in a row: four clusters, exact without the improvement."""
    layer = layer_of("clustered", clusters=4, keys=0)
    q, k, v, _ = projected(layer, tokens(20))
    q = q[:, :, ::5].repeat_interleave(5, dim=2)
    torch.testing.assert_close(layer.mix(q, k, v, k), (q @ k.mT / 8**0.5).softmax(-1) @ v, **EXACT)


def test_members_of_a_cluster_share_the_weights_of_their_mean():
    """And where improved, they redistribute the mass of its best keys by their own softmax."""
    layer = layer_of("clustered", clusters=3, keys=0)
    improved = layer_of("clustered", clusters=3, keys=4)
    q, k, v, plain = projected(layer, tokens(20, batch=1))
    better = improved.mix(q, k, v, k)
    clusters = layer.cluster(q, torch.ones(1, 1, 20, dtype=torch.bool))
    for h in range(2):
        for i in range(20):
            mean = q[0, h, clusters[0, h] == clusters[0, h, i]].mean(0)
            row = (k[0, h] @ mean / 8**0.5).softmax(0)
            torch.testing.assert_close(plain[0, h, i], row @ v[0, h], **EXACT)
            top = row.topk(4).indices
            expected = row[top].sum() * softmax_row(q[0, h, i], k[0, h, top], v[0, h, top])
            rest = row.index_fill(0, top, 0.0) @ v[0, h]
            torch.testing.assert_close(better[0, h, i], expected + rest, **EXACT)


def test_lloyds_centroids_are_the_majority_of_their_members():
    """A fixed point of the algorithm: every query is nearest to its centroid's bits, which its members voted for."""
    layer = layer_of("clustered", clusters=3, iterations=50)
    q = projected(layer, tokens(30, batch=1))[0]
    bits = (torch.nn.functional.pad(q, (0, 1), value=1.0) @ layer.planes.mT).sign()
    clusters = layer.cluster(q, torch.ones(1, 1, 30, dtype=torch.bool))[0]
    for h in range(2):
        votes = torch.stack([bits[0, h, clusters[h] == c].sum(0) for c in range(3)])
        agreement = bits[0, h] @ votes.sign().mT
        own = agreement.gather(1, clusters[h, :, None])[:, 0]
        assert (own >= agreement.amax(1) - (votes == 0).sum(1).max()).all()


def test_without_iterations_queries_join_the_nearest_of_the_first_evenly_spaced_ones():
    layer = layer_of("clustered", clusters=3, iterations=0)
    q = projected(layer, tokens(30, batch=1))[0]
    bits = (torch.nn.functional.pad(q, (0, 1), value=1.0) @ layer.planes.mT).sign()
    clusters = layer.cluster(q, torch.ones(1, 1, 30, dtype=torch.bool))
    assert torch.equal(clusters, (bits @ bits[:, :, [0, 10, 20]].mT).argmax(-1))


def test_one_hyperplane_separates_two_clusters_at_most():
    layer = layer_of("clustered", clusters=20, bits=1)
    clusters = layer.cluster(projected(layer, tokens(30))[0], torch.ones(2, 1, 30, dtype=torch.bool))
    assert max(len(row.unique()) for row in clusters.flatten(0, 1)) == 2


def test_gradients_pass_through_the_means():
    layer = layer_of("clustered", clusters=3, keys=0)
    q, k, v, _ = projected(layer, tokens(20))
    (gradient,) = torch.autograd.grad(layer.mix(q, k, v, k).square().sum(), q)
    assert gradient.abs().amax(-1).min() > 0


def test_what_cannot_be_is_refused():
    with pytest.raises(SetupError, match=r"attention.keys=0: must be at least 1"):
        layer_of("topk", keys=0)
    with pytest.raises(SetupError, match=r"attention.factor=0.0: must be more than 0"):
        layer_of("informer", factor=0.0)
    with pytest.raises(SetupError, match=r"'clustered' cannot be causal: the mean of a cluster.*softmax"):
        layer_of("clustered", causal=True)

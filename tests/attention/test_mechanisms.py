"""Exact facts about single mechanisms."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.dot_product import dot_product_attention
from fourierformer.attention.mechanisms.fourier import matched_radius
from fourierformer.attention.mechanisms.gaussian import gaussian_attention
from fourierformer.errors import SetupError
from fourierformer.marks import Mark, marks_of

GEOMETRY = Geometry(dim=64, heads=4, length=64, causal=True)


def heads(seed: int, n: int = 33) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, n, 16, generator=generator, dtype=torch.float64) for _ in range(3)]


def masked_softmax(logits: torch.Tensor, causal: bool) -> torch.Tensor:
    n, m = logits.shape[-2:]
    future = torch.arange(m)[None, :] > torch.arange(n)[:, None] + m - n
    return (logits.masked_fill(future, -math.inf) if causal else logits).softmax(-1)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_the_explicit_formula(causal):
    q, k, v = heads(0)
    expected = masked_softmax(q @ k.mT / math.sqrt(16), causal) @ v
    torch.testing.assert_close(dot_product_attention(q, k, v, causal=causal), expected)


@pytest.mark.parametrize("queries", [1, 5, 33])
def test_fewer_queries_are_the_last_ones(queries):
    q, k, v = heads(1)
    full = dot_product_attention(q, k, v, causal=True)
    torch.testing.assert_close(dot_product_attention(q[:, :, -queries:], k, v, causal=True), full[:, :, -queries:])


@pytest.mark.parametrize("causal", [True, False])
def test_gaussian_is_the_nadaraya_watson_estimator(causal):
    q, k, v = heads(2)
    distances = (q[:, :, :, None] - k[:, :, None]).square().sum(-1)
    expected = masked_softmax(-distances / (2 * 3.0), causal) @ v
    torch.testing.assert_close(gaussian_attention(q, k, v, 3.0, causal=causal), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_gaussian_with_normalised_keys_is_softmax_attention(causal):
    """Equation 8 of the paper: sigma^2 = sqrt(D) and keys of unit norm give softmax(q k^T / sqrt(D)) v."""
    q, k, v = heads(3)
    k = F.normalize(k, dim=-1)
    expected = dot_product_attention(q, k, v, causal=causal)
    torch.testing.assert_close(gaussian_attention(q, k, v, math.sqrt(16), causal=causal), expected)


def test_gaussian_layer_defaults_to_sqrt_of_the_head_dim():
    assert attention.build("gaussian", GEOMETRY).bandwidth == 4.0
    assert attention.build("gaussian", GEOMETRY, bandwidth=2.5).bandwidth == 2.5


@pytest.mark.parametrize(
    ("name", "shape"),
    [("fourier", ()), ("fourier_head", (4, 1)), ("fourier_vector", (1, 16)), ("fourier_first_coordinate", ())],
)
def test_radius_has_one_number_per_layer_head_or_coordinate(name, shape):
    radius = attention.build(name, GEOMETRY).radius
    assert radius.shape == shape
    assert (radius == 2.0).all()
    assert (attention.build(name, replace(GEOMETRY, causal=False)).radius == 1.0).all()  # the paper's for images


@pytest.mark.parametrize(("head_dim", "expected"), [(16, 0.43), (32, 0.36), (64, 0.31)])
def test_matched_radius(head_dim, expected):
    assert round(matched_radius(head_dim, 4), 2) == expected


@pytest.mark.parametrize("power", [2, 4, 6])
def test_matched_radius_is_as_sharp_as_softmax(power):
    """Near 0 the curvature of log w in q - k is that of softmax's q.k / sqrt(D): compare second differences."""
    radius, step = matched_radius(16, power), 1e-3
    log_w = power * math.log(math.sin(radius * step) / (radius * step))
    assert log_w == pytest.approx(-(step**2) / (2 * math.sqrt(16)), rel=1e-4)


def test_first_coordinate_ignores_all_others():
    layer = attention.build("fourier_first_coordinate", GEOMETRY)
    q, k, v = (t.float() for t in heads(4))
    q2, k2 = q.clone(), k.clone()
    q2[..., 1:], k2[..., 1:] = 7.0, -3.0
    x = torch.zeros(1)
    torch.testing.assert_close(layer.mix(q, k, v, x), layer.mix(q2, k2, v, x))
    assert not torch.allclose(layer.mix(q, k, v, x), attention.build("fourier", GEOMETRY).mix(q, k, v, x))


def test_radius_learns_at_its_own_rate_and_does_not_decay():
    layer = attention.build("fourier", GEOMETRY, radius_lr_multiplier=10.0)
    assert marks_of(layer)["radius"] == Mark(no_weight_decay=True, lr_multiplier=10.0)


@pytest.mark.parametrize("name", ["fourier", "fourier_head", "fourier_vector", "fourier_first_coordinate"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_attended_share_is_what_a_row_of_the_maps_sums_to(name, causal):
    layer = attention.build(name, Geometry(dim=64, heads=4, length=64, causal=causal), eps=0.02, radius=0.7)
    q, k, v = heads(3)
    layer.mix(q, k, v, v)
    assert "attended_share" not in layer.diagnostics()  # it is not computed in training
    layer.eval().mix(q[:, :, -1:], k, v, v)
    assert "attended_share" not in layer.diagnostics()  # nor for single queries
    layer.mix(q, k, v, v)
    row_sum = layer.maps(q, k)[:, :, -1].sum(-1).mean().item()
    assert 0.1 < row_sum < 1
    assert layer.diagnostics()["attended_share"] == pytest.approx(row_sum, rel=1e-5)


def test_the_attended_share_is_the_mean_over_an_evaluation():
    """Not of its last batch, and not of the evaluation before."""
    layer = attention.build("fourier", Geometry(dim=64, heads=4, length=64, causal=True), eps=0.02, radius=0.7).eval()
    expected = []
    for seed in (3, 4):
        layer.train().eval()
        batches = [tuple(x[:count] for x in heads(seed + 10 * count)) for count in (2, 1)]
        sums = [layer.maps(q, k)[:, :, -1].sum(-1).flatten() for q, k, _ in batches]
        for q, k, v in batches:
            layer.mix(q, k, v, v)
        expected.append(torch.cat(sums).mean().item())
        assert layer.diagnostics()["attended_share"] == pytest.approx(expected[-1], rel=1e-5)
    assert expected[0] != pytest.approx(expected[1], rel=1e-3)


def test_the_attended_share_counts_only_the_keys_that_are_kept():
    layer = attention.build("fourier", Geometry(dim=64, heads=4, length=64, causal=False), eps=0.02, radius=0.7).eval()
    q, k, v = heads(3)
    keep = torch.ones(2, 33, dtype=torch.bool)
    keep[0, :10], keep[:, 30:] = False, False
    layer.mix(q, k, v, v, keep=keep)
    alone = [layer.maps(q[b : b + 1], k[b : b + 1, :, keep[b]]).sum(-1)[0].T for b in range(2)]  # (N, H)
    expected = torch.stack([row_sums[29] for row_sums in alone]).mean().item()  # of the last query that is no padding
    assert layer.diagnostics()["attended_share"] == pytest.approx(expected, rel=1e-5)
    layer.train().eval()
    layer.mix(q, k, v, v, keep=keep, cross=True)  # queries are another sequence
    expected = torch.stack([row_sums[32] for row_sums in alone]).mean().item()
    assert layer.diagnostics()["attended_share"] == pytest.approx(expected, rel=1e-5)


def test_a_layer_that_eps_has_switched_off_is_reported():
    """q, k ~ 3 N(0, 1) at R = 2: hardly any of 16 factors is above 1/10, and 10^-64 is nothing beside 1e-6."""
    q, k, v = (3 * t for t in heads(4))
    layer = attention.build("fourier", GEOMETRY).eval()
    assert layer.mix(q, k + 2, v, v).abs().max() < 1e-3
    with pytest.warns(UserWarning, match="attention.eps=0 or attention.radius=matched"):
        assert layer.diagnostics()["attended_share"] < 1e-3
    exact = attention.build("fourier", GEOMETRY, eps=0.0).eval()
    exact.mix(q, k + 2, v, v)
    assert set(exact.diagnostics()) == {"radius"}


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("fourier", {"power": 3}, "even"),
        ("fourier", {"power": 0}, "even"),
        ("fourier", {"eps": -1e-6}, "eps"),
        ("gaussian", {"bandwidth": 0.0}, "bandwidth=0.0: must be at least 1e-06"),
    ],
)
def test_impossible_knobs_are_refused(name, knobs, message):
    with pytest.raises(SetupError, match=message):
        attention.build(name, GEOMETRY, **knobs)


@pytest.mark.parametrize(("name", "share"), [("differential", 2), ("parallax", 1.5), ("mgk", 1.5)])
def test_products_of_all_pairs_beside_the_two_of_softmax(name, share):
    """As the table of attentions states them."""

    @torch.no_grad()
    def products(name: str) -> int:
        layer, x = attention.build(name, GEOMETRY).eval(), torch.randn(1, 64, 64)
        q, k, v = layer.arguments(x)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            layer.mix(q, k, v, x)
        return counter.get_total_flops()

    assert attention.mechanism(name).cost == f"{'3/2' if share == 1.5 else share} N² C"
    assert products(name) == share * products("softmax")


def test_heads_must_divide_dim():
    with pytest.raises(SetupError, match="divisible"):
        Geometry(dim=64, heads=5, length=8, causal=True)


RANDOM = [("lsh", "rotations"), ("routing", "centroids"), ("clustered", "planes"), ("sinkhorn", "key"), ("sac", "key")]


@pytest.mark.parametrize(("name", "buffer"), RANDOM)
def test_random_numbers_are_those_of_seed_and_layer_and_differ_between_heads_and_rounds(name, buffer):
    def drawn(seed: int, layer: int) -> torch.Tensor:
        geometry = Geometry(dim=32, heads=4, length=16, causal=False, seed=seed, layer=layer)
        torch.manual_seed(seed + 17 * layer)  # the global generator has no part in it
        return attention.build(name, geometry).get_buffer(buffer)

    one = drawn(0, 0)
    assert torch.equal(one, drawn(0, 0))
    assert not torch.equal(one, drawn(1, 0))
    assert not torch.equal(one, drawn(0, 1))
    if one.dim():
        parts = one.flatten(0, 1) if name == "lsh" else one
        assert not any(torch.equal(parts[i], parts[j]) for i in range(len(parts)) for j in range(i))


def test_an_exported_layer_takes_any_number_of_rows():
    layer = attention.build("fourier", Geometry(dim=8, heads=2, length=5, causal=False)).eval()
    exported = torch.export.export(layer, (torch.randn(3, 5, 8),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    x = torch.randn(6, 5, 8)
    torch.testing.assert_close(exported.module()(x), layer(x))

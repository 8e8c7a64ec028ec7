"""Facts about linear.py, performer.py and rfa.py: what the mechanisms approximate and what they equal."""

import math

import pytest
import torch
import torch.nn.functional as F

from fourierformer.attention.engines.dot_product import dot_product_attention
from tests.helpers.linear_cases import HEADS, LENGTH, NO_X, VARIANTS, WIDTH, assert_same, heads, layer_of, tokens
from tests.helpers.one_by_one import one_by_one

# -- what they approximate ---------------------------------------------------------------------------------------------


def mean_error(name: str, features: int, expected, inputs, **knobs) -> float:
    """Relative error of the output, over 4 draws for each of 4 heads and 2 rows."""
    errors = []
    for seed in range(4):
        out = layer_of(name, seed=seed, features=features, **knobs).mix(*inputs, NO_X)
        errors.append(((out - expected).norm() / expected.norm()).item())
    return sum(errors) / len(errors)


@pytest.mark.parametrize(
    ("name", "knobs", "largest"),
    [
        ("performer", {"kind": "positive"}, 0.03),
        ("performer", {"kind": "hyperbolic"}, 0.02),
        ("performer_trig", {}, 0.02),
    ],
)
def test_performers_converge_to_softmax_as_the_root_of_the_features(name, knobs, largest):
    """At q, k of size 0.3; at size 1 the positive estimate is not near softmax even with 4096 features."""
    inputs = heads(0.3)
    expected = dot_product_attention(*inputs, causal=True)
    few, many = (mean_error(name, m, expected, inputs, **knobs) for m in (64, 1024))
    assert many < largest
    slope = math.log(many / few) / math.log(1024 / 64)
    assert -0.7 < slope < -0.35


def test_rfa_converges_to_softmax_of_cosines():
    q, k, v = heads()
    expected = dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, causal=True, scale=1.0)
    few, many = (mean_error("rfa", m, expected, [q, k, v], gate=False) for m in (64, 1024))
    assert many < 0.05
    assert -0.7 < math.log(many / few) / math.log(1024 / 64) < -0.35


def test_the_scale_of_rfa_sharpens_its_kernel():
    """exp(-|sigma (q - k)|^2 / 2) with one sigma per coordinate."""
    layer = layer_of("rfa", features=8192, gate=False)
    scale = torch.linspace(0.2, 1.5, WIDTH, dtype=torch.float64)
    layer.sigma.data[:] = scale
    q, k, v = heads()
    x, y = (scale * F.normalize(t, dim=-1) for t in (q, k))
    weights = (-(x[:, :, :, None] - y[:, :, None]).square().sum(-1) / 2).exp().tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    assert ((layer.mix(q, k, v, NO_X) - expected).norm() / expected.norm()).item() < 0.03


def test_relu_features_converge_to_the_arc_cosine_kernel():
    q, k, v = heads()
    angle = torch.acos(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT)
    weights = (k.norm(dim=-1)[..., None, :] * (angle.sin() + (math.pi - angle) * angle.cos())).tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    few, many = (mean_error("linear_relu", m, expected, [q, k, v]) for m in (64, 1024))
    assert many < 0.07
    assert -0.7 < math.log(many / few) / math.log(1024 / 64) < -0.35


def test_linear_elu_is_its_formula():
    q, k, v = heads()
    layer = layer_of("linear_elu", eps=0.1)
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    assert_same(layer.mix(q, k, v, NO_X), weights @ v / (weights.sum(-1, keepdim=True) + 0.1))


# -- exact identities --------------------------------------------------------------------------------------------------


def waves(x: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angles = x @ frequencies.mT
    return torch.cat([angles.sin(), angles.cos()], -1) / math.sqrt(frequencies.shape[-2])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("std", [0.3, 2.0])
def test_key_weights_relative_to_the_largest_so_far_leave_the_formula_as_it_is(causal, std):
    """performer_trig as printed: weights exp(|k|^2/2) phi(q).phi(k), the sum at least floor times the sum of the key
    weights exp(|k|^2/2)."""
    q, k, v = heads(std)
    layer = layer_of("performer_trig", causal)
    x, y = q * WIDTH**-0.25, k * WIDTH**-0.25
    key_weight = (y.square().sum(-1) / 2).exp()[..., None, :].expand(-1, -1, LENGTH, -1)
    weights = key_weight * (waves(x, layer.frequencies) @ waves(y, layer.frequencies).mT)
    if causal:
        key_weight, weights = key_weight.tril(), weights.tril()
    floor, total = 0.05 * key_weight.sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
    assert (total < floor).any() == (std == 2.0)  # both sides of the floor
    assert_same(layer.mix(q, k, v, NO_X), weights @ v / total.maximum(floor))


def test_the_gate_of_rfa_is_its_recurrence():
    """S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t, z_t alike, g_t = sigmoid(w.x_t + b); the floor is that of the weights
    in z, 1 - prod g."""
    layer = layer_of("rfa")
    x = tokens(LENGTH)
    q, k, v = layer.project(x)
    phi_q, phi_k = (waves(F.normalize(t, dim=-1), layer.frequencies) for t in (q, k))
    gate = torch.sigmoid(x @ layer.gate.weight.T + layer.gate_bias)
    assert layer.gate_bias.tolist() == [3.0] * HEADS
    s, z, left, rows = 0.0, 0.0, 1.0, []
    for t in range(LENGTH):
        g = gate[:, t, :, None]
        s = g[..., None] * s + (1 - g[..., None]) * phi_k[:, :, t, :, None] * v[:, :, t, None]
        z = g * z + (1 - g) * phi_k[:, :, t]
        left = g * left
        total = (phi_q[:, :, t] * z).sum(-1, keepdim=True).maximum(0.05 * (1 - left))
        rows.append((phi_q[:, :, t, None] @ s)[..., 0, :] / total)
    assert_same(layer.mix(q, k, v, x), torch.stack(rows, 2))


@pytest.mark.parametrize(("name", "knobs"), VARIANTS)
def test_tokens_one_by_one_give_what_forward_gives(name, knobs):
    layer, x = layer_of(name, **knobs), tokens(70)
    assert_same(one_by_one(layer, x), layer(x))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), VARIANTS)
def test_forms_agree_also_for_the_last_queries_of_a_long_sequence(name, knobs, causal):
    one, two = (layer_of(name, causal, form=form, **knobs) for form in ("parallel", "chunk"))
    x = tokens(200)
    assert_same(one(x), two(x))
    assert_same(two(x, last=70), two(x)[:, -70:])


@pytest.mark.parametrize(("name", "knobs"), VARIANTS)
def test_bidirectional_attention_follows_a_permutation_of_the_tokens(name, knobs):
    layer, x = layer_of(name, causal=False, **knobs), tokens(50)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert_same(layer(x[:, order]), layer(x)[:, order])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["linear_relu", "performer"])
def test_positive_weights_are_a_distribution_over_the_keys(name, causal):
    q, k, _ = heads(2.0)
    maps = layer_of(name, causal).maps(q, k)
    visible = torch.ones(LENGTH, LENGTH).tril() if causal else torch.ones(LENGTH, LENGTH)
    assert ((maps > 0) == visible.bool()).all()
    assert_same(maps.sum(-1), torch.ones_like(maps[..., 0]))


@pytest.mark.parametrize("name", ["performer_trig", "rfa"])
def test_the_floor_bounds_signed_weights(name):
    """|phi(q).phi(k)| <= 1, so no weight exceeds 1 / floor of its share of the key weights, whatever their sum is."""
    q, k, v = heads(3.0)
    out = layer_of(name, gate=False).mix(q, k, v, NO_X) if name == "rfa" else layer_of(name).mix(q, k, v, NO_X)
    assert out.abs().max() <= v.abs().max() / 0.05

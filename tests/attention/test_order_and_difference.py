"""Mechanisms that depend on the order of tokens, differences of maps, and FNet, each against its formula."""

import itertools
import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, projected, rows, softmax_row, tokens


def test_logits_fall_by_the_gates_between():
    layer, x = layer_of("forgetting", True), tokens(7, batch=1)
    gates = (layer.gate(x) + layer.gate_bias).sigmoid()[0]
    q, k, v, mixed = projected(layer, x)
    for h, i in itertools.product(range(2), range(7)):
        between = torch.stack([gates[j + 1 : i + 1, h].prod().log() for j in range(i + 1)])
        expected = softmax_row(q[0, h, i], k[0, h, : i + 1, :8], v[0, h, : i + 1], between)
        torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


def test_gates_of_long_texts_lose_no_digits():
    """Sums of 2,000 logarithms are some thousands, their differences small."""
    exact = attention.build("forgetting", Geometry(8, 2, 2048, True)).double().eval()
    with torch.no_grad():
        exact.gate.weight.normal_()
        exact.gate_bias.fill_(-2.0)
    x = torch.randn(1, 2048, 8, generator=torch.Generator().manual_seed(0))
    rounded = [tensor.float() for tensor in exact.arguments(x.double())]
    found = exact.mix(*rounded, x)[:, :, -256:].double()
    expected = exact.mix(*(tensor.double() for tensor in rounded), x.double())[:, :, -256:]
    assert (found - expected).norm() <= 1e-6 * expected.norm()


def test_constant_gates_are_alibi_and_open_ones_softmax():
    layer = layer_of("forgetting", True)
    x = tokens(9)
    with torch.no_grad():
        layer.gate.weight.zero_()
        for name, log_gates in (
            ("alibi", -layer_of("alibi", True).slopes.double()),
            ("softmax", torch.zeros(2).double()),
        ):
            layer.gate_bias.copy_(-(torch.expm1(-log_gates).clamp_min(1e-18)).log())  # f / (1 - f) = 1 / (e^m - 1)
            other = layer_of(name, True)
            other.load_state_dict(layer.state_dict(), strict=False)
            torch.testing.assert_close(layer(x), other(x), **EXACT)


@pytest.mark.parametrize(("bias", "kept"), [(0.0, 0.5), (5.0, 0.9933071)])
def test_gates_begin_at_their_bias(bias, kept):
    layer = attention.build("forgetting", Geometry(16, 2, 9, True), gate_bias=bias).double()
    for weight in (layer.qkv.weight, layer.gate.weight):
        torch.nn.init.zeros_(weight)
    maps = layer.maps(*layer.project(tokens(6))[:2])
    weights = kept ** torch.arange(5, -1, -1).double()
    torch.testing.assert_close(maps[:, :, -1], (weights / weights.sum()).expand(2, 2, -1), rtol=0, atol=1e-6)


def test_shares_of_a_stick():
    layer, x = layer_of("stick_breaking", True), tokens(7, batch=1)
    q, k, v, mixed = projected(layer, x)
    maps = layer.maps(q, k)
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 2, 7).double(), **EXACT)
    for h, i in itertools.product(range(2), range(7)):
        left, expected = 1.0, 0.0
        for j in reversed(range(i)):
            share = (q[0, h, i] @ k[0, h, j] / 8**0.5).sigmoid()
            expected = expected + left * share * v[0, h, j]
            left = left * (1 - share)
        torch.testing.assert_close(mixed[0, h, i], expected + left * v[0, h, i], **EXACT)


@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_fnet_is_a_sum_of_cosines_and_sines(norm):
    layer, x = layer_of("fnet", norm=norm), tokens(7)

    def tables(n):
        angles = 2 * math.pi / n * torch.outer(torch.arange(n), torch.arange(n)).double()
        return angles.cos(), angles.sin()

    (cos_n, sin_n), (cos_c, sin_c) = tables(7), tables(16)
    expected = cos_n @ x @ cos_c - sin_n @ x @ sin_c
    torch.testing.assert_close(layer(x), expected / (math.sqrt(7 * 16) if norm == "ortho" else 1), **EXACT)
    assert not list(layer.parameters())


@BOTH
def test_the_difference_of_two_maps(causal):
    layer = layer_of("differential", causal)
    a1, b1, a2, b2 = layer.vectors
    share = (a1 @ b1).exp() - (a2 @ b2).exp() + 0.2
    for _, q, k, v, y in rows(layer, causal):
        difference = softmax_row(q[:4], k[:, :4], v) - share * softmax_row(q[4:], k[:, 4:], v)
        expected = 0.8 * layer.scale * difference / (difference.square().mean() + 1e-5).sqrt()
        torch.testing.assert_close(y, expected, **EXACT)


@pytest.mark.parametrize(("layer", "share"), [(0, 0.2), (1, 0.355509), (2, 0.470713), (11, 0.777870)])
def test_the_share_of_the_second_map_begins_at_that_of_the_layer(layer, share):
    """0.8 - 0.6 exp(-0.3 (l - 1)) in layer l = 1, 2, ... (Ye et al. 2024, section 2.1), for a.b = 0."""
    built = attention.build("differential", Geometry(16, 2, 9, True, layer=layer)).double()
    torch.nn.init.zeros_(built.vectors)
    assert built.share().item() == pytest.approx(share, abs=1e-6)
    for _, q, k, v, y in rows(built, True):
        difference = (k[:, :4] @ q[:4] / 2).softmax(0) @ v - share * (k[:, 4:] @ q[4:] / 2).softmax(0) @ v
        expected = (1 - share) * difference / (difference.square().mean() + 1e-5).sqrt()
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "knobs"), [("differential", {}), ("fourier_disc", {}), ("local_linear", {"weights": "disc"})]
)
def test_an_odd_number_of_coordinates_has_no_pairs(name, knobs):
    with pytest.raises(SetupError, match="3 coordinates per head is an odd number"):
        attention.build(name, Geometry(dim=6, heads=2, length=5, causal=True), **knobs)

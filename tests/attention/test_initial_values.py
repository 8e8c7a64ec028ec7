"""What the parameters of mechanisms are before training, which tests of formulas draw anew."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry

DRAWN = [
    ("differential", {}, True, "vectors", 0.1),  # Ye et al. 2024
    ("linformer", {"rank": 16}, False, "along", 1 / 4),  # theorem 2: N(0, 1 / rank)
    ("mca", {"ratio": 3}, True, "of_keys", 1 / (3 * 64) ** 0.5),
    ("mca", {"ratio": 3}, True, "of_values", 1 / (3 * 64) ** 0.5),
    ("luna", {}, True, "packing", 1.0),  # equal rows would remain equal
    ("isab", {}, False, "points", 1.0),
    ("synthesizer", {}, True, "table", 0.1),
    ("synthesizer", {"kind": "factorized_dense"}, True, "first", 0.1**0.5),
    ("etc", {"slots": 64}, True, "slot_keys", 0.02 * 128**0.5),
    ("etc", {"slots": 64}, True, "slot_values", 0.02 * 128**0.5),
    ("mgk", {"second": "shift"}, True, "shift", 0.5),
    ("parallax", {"probe_init": "normal"}, True, "probe", 0.02),
    ("delta_net", {}, True, "taps", 1 / (3 * 4) ** 0.5),  # uniform in +-1/2
]


@pytest.mark.parametrize(("name", "knobs", "causal", "parameter", "deviation"), DRAWN)
def test_parameters_are_drawn_with_their_deviation(name, knobs, causal, parameter, deviation):
    torch.manual_seed(0)
    drawn = attention.build(name, Geometry(128, 2, 64, causal), **knobs).get_parameter(parameter).detach()
    n = drawn.numel()
    assert drawn.mean().item() == pytest.approx(0, abs=5 * deviation / n**0.5)
    assert drawn.std().item() == pytest.approx(deviation, rel=4 / n**0.5)
    assert name != "delta_net" or 0.49 < drawn.abs().max() <= 0.5


MATCHED = (3 / (4 * 8)) ** 0.5  # as sharp as softmax at power 4 and 64 coordinates
CONSTANT = [
    ("sink", {}, "logit", 0.0),
    ("adaptive_span", {}, "span", 0.0),
    ("mgk", {}, "mixture", 0.0),
    ("mlk", {}, "mixture", 0.0),
    ("biweight", {"learn_bandwidth": True}, "log_scale", 0.0),
    *((name, {}, "scale", 1.0) for name in ("retnet", "ssd", "gla", "delta_net", "gated_delta_net", "differential")),
    ("mom_fourier", {}, "log_kernel.radius", MATCHED),
    ("local_linear_fourier", {}, "log_kernel.radius", MATCHED),
    ("fourier_sink", {}, "log_kernel.radius", MATCHED),
    ("fourier_sink", {"power": 2}, "log_kernel.radius", MATCHED * 2**0.5),
    ("fourier_disc", {}, "log_kernel.radius", MATCHED * (4 / 3) ** 0.5),
    ("local_linear", {"weights": "disc"}, "log_kernel.radius", MATCHED * (4 / 3) ** 0.5),
    ("fourier_disc", {"radius": "paper"}, "log_kernel.radius", 2 * (4 / 3) ** 0.5),
]


@pytest.mark.parametrize(("name", "knobs", "parameter", "value"), CONSTANT)
def test_parameters_begin_at_their_value(name, knobs, parameter, value):
    layer = attention.build(name, Geometry(128, 2, 64, True), **knobs)
    found = layer.get_parameter(parameter).detach()
    torch.testing.assert_close(found, torch.full_like(found, value))


def test_cosines_begin_at_a_sharpness_of_10():
    """Liu et al. 2022: tau = 0.1."""
    layer = attention.build("softmax", Geometry(32, 4, 8, True, qk_norm="cosine"))
    assert layer.qk_norm.log_sharpness.exp().tolist() == pytest.approx([10.0] * 4)


def test_the_decay_of_gla_has_rank_16():
    down, up = attention.build("gla", Geometry(64, 2, 8, True)).decay
    assert (down.weight.shape, up.weight.shape) == ((16, 64), (64, 16))

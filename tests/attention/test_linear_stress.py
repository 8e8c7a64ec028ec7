"""Extreme inputs, random state and knobs of linear_elu, linear_relu, performer, performer_trig and rfa."""

import pytest
import torch

from fourierformer.errors import SetupError
from tests.helpers.linear_cases import NO_X, POSITIVE, VARIANTS, heads, layer_of, tokens

# -- stress ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), VARIANTS)
@pytest.mark.parametrize("inputs", ["large", "zero", "equal"])
def test_extreme_inputs_stay_finite(name, knobs, causal, inputs):
    layer = layer_of(name, causal, **knobs).float()
    x = {"large": 50 * tokens(80), "zero": 0 * tokens(80), "equal": tokens(80)[:, :1].expand(-1, 80, -1)}[inputs]
    for precision in (torch.float32, torch.bfloat16):
        leaf = x.float().clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            out = layer(leaf)
        out.float().square().sum().backward()
        assert out.isfinite().all()
        assert leaf.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("name", POSITIVE)
def test_equal_tokens_are_their_own_mean(name, size, causal):
    layer = layer_of(name, causal).float()
    q, k, v = layer.project((size * tokens(80)[:, :1]).float().expand(-1, 80, -1))
    torch.testing.assert_close(layer.mix(q, k, v, NO_X), v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("later", [1.0, 50.0])
def test_a_long_key_to_come_does_not_reach_the_past_of_performers(later):
    """Bit by bit: neither a maximum over all keys nor a sum over them enters an earlier row."""
    for name in ("performer", "performer_trig"):
        layer = layer_of(name).float()
        q, k, v = (t.float() for t in heads())
        changed = k.clone()
        changed[:, :, 40:] *= -2 * later
        assert torch.equal(layer.mix(q, changed, v, NO_X)[:, :, :40], layer.mix(q, k, v, NO_X)[:, :, :40])


# -- random state and knobs --------------------------------------------------------------------------------------------


def test_frequencies_follow_from_seed_and_layer():
    one = layer_of("performer").frequencies
    assert torch.equal(one, layer_of("performer").frequencies)
    for other in (layer_of("performer", seed=1), layer_of("performer", layer=1)):
        assert not torch.equal(one, other.frequencies)
    assert not torch.equal(one[0], one[1])  # every head has its own


def test_redraw_is_a_function_of_the_step_and_survives_a_resume():
    def after(layer, steps):
        seen = []
        for step in steps:
            layer.begin_step(step)
            seen.append(layer.frequencies.clone())
        return seen

    layer = layer_of("performer", redraw=3)
    first = layer.frequencies.clone()
    straight = after(layer, range(8))
    changed = [step for step in range(1, 8) if not torch.equal(straight[step], straight[step - 1])]
    assert changed == [3, 6]
    assert torch.equal(straight[0], first)
    for stop in (2, 3, 4):
        interrupted, resumed = layer_of("performer", redraw=3), layer_of("performer", redraw=3)
        after(interrupted, range(stop))
        resumed.load_state_dict(interrupted.state_dict())
        for expected, frequencies in zip(straight[stop:], after(resumed, range(stop, 8)), strict=True):
            assert torch.equal(expected, frequencies)


def test_never_redrawn():
    layer = layer_of("performer", redraw=None)
    first = layer.frequencies.clone()
    layer.begin_step(0)
    layer.begin_step(1000)
    assert torch.equal(layer.frequencies, first)


def test_rfa_has_a_gate_where_there_is_a_past():
    assert layer_of("rfa", causal=True).gate is not None
    assert layer_of("rfa", causal=False).gate is None
    assert layer_of("rfa", causal=True, gate=False).gate is None
    with pytest.raises(SetupError, match="bidirectional"):
        layer_of("rfa", causal=False, gate=True)


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("linear_elu", {"eps": 0.0}, "attention.eps"),
        ("linear_relu", {"features": 0}, "attention.features"),
        ("performer", {"features": 33, "kind": "hyperbolic"}, "even"),
        ("performer", {"redraw": 0}, "attention.redraw"),
        ("performer_trig", {"features": 33}, "even"),
        ("performer_trig", {"floor": 0.0}, "attention.floor"),
        ("rfa", {"features": 33}, "even"),
        ("rfa", {"floor": 1.5}, "attention.floor"),
    ],
)
def test_impossible_knobs_are_refused(name, knobs, message):
    with pytest.raises(SetupError, match=message):
        layer_of(name, **knobs)

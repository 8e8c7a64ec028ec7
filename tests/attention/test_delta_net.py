"""delta_net and gated_delta_net against a plain loop over heads and tokens, and their limits."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.delta_rule import delta_rule
from fourierformer.attention.mechanisms.delta import GatedDeltaNet
from fourierformer.errors import SetupError
from fourierformer.models.lm import initialise
from tests.helpers.one_by_one import one_by_one
from tests.helpers.zoo_cases import EXACT, layer_of, projected, tokens

NAMES = pytest.mark.parametrize("name", ["delta_net", "gated_delta_net"])
KNOBS = pytest.mark.parametrize("knobs", [{}, {"conv": 0}, {"conv": 1}, {"negative": True}])


def convolved(layer, part: int, x: torch.Tensor) -> torch.Tensor:
    """One of q, k, v, (B, H, N, D), after the convolution and silu: each token with the conv - 1 before it."""
    if layer.conv:
        taps, rows = layer.taps[:, part, :, 0], []
        for t in range(x.shape[2]):
            row = torch.zeros_like(x[:, :, 0])
            for back in range(min(t + 1, layer.conv)):
                row = row + taps[layer.conv - 1 - back] * x[:, :, t - back]
            rows.append(row)
        x = torch.stack(rows, dim=2)
    return x * x.sigmoid()


def read_by_loop(layer, x: torch.Tensor) -> torch.Tensor:
    """What `mix` returns, written token by token."""
    q, k, v = (convolved(layer, part, t) for part, t in enumerate(layer.project(x)))
    rates = (x @ layer.beta.weight.T).sigmoid() * (2 if layer.negative else 1)
    kept, gate = torch.ones_like(rates), torch.ones_like(x)
    if isinstance(layer, GatedDeltaNet):
        steps = (x @ layer.decay.weight.weight.T + layer.decay.bias).exp().add(1).log()
        kept, gate = (-layer.decay.log_rate.exp() * steps).exp(), x @ layer.gate.weight.T
        gate = gate * gate.sigmoid()
    mixed = torch.empty_like(v)
    for b, h in itertools.product(range(len(x)), range(q.shape[1])):
        memory = torch.zeros(8, 8, dtype=x.dtype)
        for t in range(x.shape[1]):
            key, query = (p[b, h, t] / p[b, h, t].norm() for p in (k, q))
            memory = kept[b, t, h] * memory
            memory = memory + rates[b, t, h] * torch.outer(key, v[b, h, t] - memory.T @ key)
            read = memory.T @ query / 8**0.5
            mixed[b, h, t] = layer.scale * read / (read.square().mean() + 1e-5).sqrt()
            mixed[b, h, t] *= gate[b, t, 8 * h : 8 * h + 8]
    return mixed


@NAMES
@KNOBS
@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_the_layer_is_its_formula(name, knobs, form):
    layer, x = layer_of(name, True, form=form, **knobs), tokens(40)
    torch.testing.assert_close(projected(layer, x)[3], read_by_loop(layer, x), **EXACT)


@NAMES
@KNOBS
def test_token_by_token_is_the_same(name, knobs):
    layer, x = layer_of(name, True, **knobs), tokens(20)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_without_decay_and_output_gate_it_is_delta_net():
    gated, plain, x = layer_of("gated_delta_net", True), layer_of("delta_net", True), tokens(40)
    with torch.no_grad():
        gated.decay.log_rate.fill_(-torch.inf)
    plain.load_state_dict(gated.state_dict(), strict=False)
    gate = F.silu(gated.gate(x)).unflatten(-1, (2, 8)).transpose(1, 2)
    torch.testing.assert_close(projected(gated, x)[3], projected(plain, x)[3] * gate, **EXACT)


def test_a_language_model_leaves_the_initial_decay_as_it_was_drawn():
    """Steps of 0.001 to 0.1 and rates up to 16: no head forgets more than 1 - exp(-1.6) at the first tokens."""
    torch.manual_seed(0)
    layer = attention.build("gated_delta_net", Geometry(dim=64, heads=32, length=8, causal=True))
    layer.apply(initialise)
    steps = F.softplus(layer.decay.bias)
    assert 1e-3 <= steps.min() < 4e-3 < 0.03 < steps.max() <= 0.1
    assert 0 < layer.decay.log_rate.exp().min() < 4 < 12 < layer.decay.log_rate.exp().max() < 16


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_a_key_that_comes_again_at_full_rate_has_its_new_value_exactly(form):
    """Key 0 is written at every second token among other keys; read with it, the memory returns its last value."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64))[0]
    v = torch.randn(1, 1, 100, 5, generator=generator, dtype=torch.float64)
    order = [0 if t % 2 == 0 else 1 + t % 7 for t in range(100)]
    first = keys[0].expand(1, 1, 100, 8)
    mixed = delta_rule(first, keys[order][None, None], v, torch.ones(1, 1, 100).double(), form=form)
    torch.testing.assert_close(mixed, v[:, :, [t - t % 2 for t in range(100)]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_rates_up_to_2_never_let_the_memory_grow(form):
    """Without values to write, I - beta k k^T has no eigenvalue beyond 1 for |k| = 1: what is read stays bounded, in
    float32 over 2,000 tokens too."""
    q, k, v = torch.randn(3, 1, 2, 2000, 8, generator=torch.Generator().manual_seed(0))
    v[:, :, 8:] = 0
    rates = torch.full((1, 2, 2000), 2.0)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    read = delta_rule(q, k, v, rates, form=form).norm(dim=-1)
    assert read.max() <= 2 * v.norm(dim=-1).sum(-1).max()
    exact = delta_rule(*(t.double() for t in (q, k, v, rates)), form=form).norm(dim=-1)
    torch.testing.assert_close(read.double(), exact, rtol=0, atol=1e-3)


@NAMES
@pytest.mark.parametrize("scale", [0.0, 50.0, 1e3])
def test_inputs_of_any_size_have_finite_outputs_and_gradients(name, scale):
    torch.manual_seed(0)
    layer = attention.build(name, Geometry(dim=16, heads=2, length=300, causal=True))
    x = (scale * tokens(300).float()).requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_images_have_no_order_and_a_convolution_no_negative_length():
    with pytest.raises(SetupError, match="order of writing"):
        layer_of("delta_net", False)
    with pytest.raises(SetupError, match=r"attention\.conv=-1: must be at least 0"):
        layer_of("delta_net", True, conv=-1)

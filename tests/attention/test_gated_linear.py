"""retnet, ssd and gla against the recurrence in a plain loop, and their limits."""

import itertools

import pytest
import torch

from fourierformer.attention import Geometry, build
from fourierformer.attention.engines.recurrence import decayed_step, decayed_sums, linear_attention
from fourierformer.errors import SetupError
from tests.helpers.one_by_one import one_by_one
from tests.helpers.zoo_cases import EXACT, layer_of, projected, tokens

NAMES = pytest.mark.parametrize("name", ["retnet", "ssd", "gla"])
FORMS = pytest.mark.parametrize("form", ["parallel", "chunk"])
WIDTHS = pytest.mark.parametrize("width", [1, 5])  # of the decay: one for all features, one for each


def drawn(n: int, width: int) -> list[torch.Tensor]:
    """fq, fk, v, log_decay: some tokens keep nearly all, some forget nearly all."""
    generator = torch.Generator().manual_seed(0)
    fq, fk, v = (torch.randn(2, 3, n, m, generator=generator, dtype=torch.float64) for m in (5, 5, 4))
    return [fq, fk, v, -(2 * torch.randn(2, 3, n, width, generator=generator, dtype=torch.float64)).exp()]


def recurrence(fq, fk, v, log_decay):
    memory, rows = torch.zeros(2, 3, 5, 4, dtype=torch.float64), []
    for t in range(v.shape[2]):
        memory = log_decay[:, :, t, :, None].exp() * memory + torch.einsum("bhm,bhd->bhmd", fk[:, :, t], v[:, :, t])
        rows.append(torch.einsum("bhm,bhmd->bhd", fq[:, :, t], memory))
    return torch.stack(rows, dim=2)


# -- the sums ------------------------------------------------------------------------------------------------------


@FORMS
@WIDTHS
@pytest.mark.parametrize("n", [1, 8, 9, 64, 65, 150])
def test_both_forms_are_the_recurrence(form, width, n):
    data = drawn(n, width)
    expected = recurrence(*data)
    torch.testing.assert_close(decayed_sums(*data, form=form), expected, **EXACT)
    last = decayed_sums(data[0][:, :, -3:], *data[1:], form=form)
    torch.testing.assert_close(last, expected[:, :, -3:], **EXACT)


@WIDTHS
def test_steps_are_the_recurrence(width):
    data, state, outputs = drawn(20, width), (torch.zeros(2, 3, 5, 4, dtype=torch.float64),), []
    for t in range(20):
        output, state = decayed_step(*(x[:, :, t : t + 1] for x in data), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=2), recurrence(*data), **EXACT)


@FORMS
@WIDTHS
def test_gradients_are_those_of_the_recurrence(form, width):
    gradients = []
    for function in (recurrence, lambda *x: decayed_sums(*x, form=form)):
        data = [x.requires_grad_() for x in drawn(70, width)]
        gradients.append(torch.autograd.grad(function(*data).square().sum(), data))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-10)


@FORMS
@WIDTHS
def test_a_gate_that_keeps_all_leaves_the_sums_of_linear_attention(form, width):
    fq, fk, v, log_decay = drawn(150, width)
    fq, fk = fq.abs(), fk.abs()
    sums = decayed_sums(fq, fk, v, torch.zeros_like(log_decay), form=form)
    denominator = (fq @ fk.mT).tril().sum(-1, keepdim=True)
    torch.testing.assert_close(sums, linear_attention(fq, fk, v, causal=True) * denominator, rtol=1e-10, atol=1e-10)


@FORMS
def test_equal_decays_of_all_features_are_one_decay(form):
    fq, fk, v, log_decay = drawn(150, 1)
    by_feature = decayed_sums(fq, fk, v, log_decay.expand(-1, -1, -1, 5).contiguous(), form=form)
    torch.testing.assert_close(by_feature, decayed_sums(fq, fk, v, log_decay, form=form), **EXACT)


@FORMS
@WIDTHS
def test_a_gate_that_keeps_nothing_leaves_the_token_itself(form, width):
    fq, fk, v, log_decay = (x.float().requires_grad_() for x in drawn(150, width))
    sums = decayed_sums(fq, fk, v, log_decay - 1e4, form=form)
    torch.testing.assert_close(sums, (fq * fk).sum(-1, keepdim=True) * v)
    sums.sum().backward()
    assert all(x.grad.isfinite().all() for x in (fq, fk, v))


@FORMS
@WIDTHS
def test_float32_stays_near_float64_over_a_thousand_tokens(form, width):
    data = drawn(1000, width)
    sums = decayed_sums(*(x.float() for x in data), form=form).double()
    expected = recurrence(*data)
    torch.testing.assert_close(sums, expected, rtol=0, atol=2e-6 * expected.abs().max().item())


# -- the layers -----------------------------------------------------------------------------------------------------


def read_by_loop(name: str, layer, x: torch.Tensor) -> torch.Tensor:
    """What `mix` returns, written token by token."""
    q, k, v = layer.project(x)
    mixed, gate = torch.empty_like(v), x @ layer.gate.weight.T
    for b, h in itertools.product(range(len(x)), range(2)):
        memory = torch.zeros(8, 8, dtype=x.dtype)
        for t in range(x.shape[1]):
            decay, key, z = torch.tensor(1 - 2.0 ** (-5 - h)).double(), k[b, h, t], gate[b, t, 8 * h : 8 * h + 8]
            if name == "ssd":
                step = (x[b, t] @ layer.decay.weight.weight[h] + layer.decay.bias[h]).exp().add(1).log()
                decay, key = (-layer.decay.log_rate[h].exp() * step).exp(), step * key
            if name == "gla":
                down, up = layer.decay
                logits = (up.weight @ (down.weight @ x[b, t]) + up.bias)[8 * h : 8 * h + 8]
                decay = logits.sigmoid() ** (1 / 16)
            memory = decay[..., None] * memory + torch.outer(key, v[b, h, t])
            read = memory.T @ q[b, h, t] / 8**0.5
            mixed[b, h, t] = layer.scale * read / (read.square().mean() + 1e-5).sqrt() * z * z.sigmoid()
    return mixed


@NAMES
@FORMS
def test_the_layer_is_its_formula(name, form):
    layer, x = layer_of(name, True, form=form), tokens(40)
    torch.testing.assert_close(projected(layer, x)[3], read_by_loop(name, layer, x), **EXACT)


@NAMES
def test_token_by_token_is_the_same(name):
    layer, x = layer_of(name, True), tokens(40)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_gla_with_constant_gates_is_retnet():
    gla, retnet, x = layer_of("gla", True), layer_of("retnet", True), tokens(40)
    retnet.load_state_dict(gla.state_dict(), strict=False)
    decay = (1 - 2.0 ** -torch.arange(5, 7).double()).repeat_interleave(8)
    with torch.no_grad():
        gla.decay[1].weight.zero_()
        gla.decay[1].bias.copy_((decay**16).logit())
    torch.testing.assert_close(gla(x), retnet(x), **EXACT)


def test_ssd_with_equal_steps_is_retnet():
    """Steps of 1: log a = -A, and s = 1."""
    ssd, retnet, x = layer_of("ssd", True), layer_of("retnet", True), tokens(40)
    retnet.load_state_dict(ssd.state_dict(), strict=False)
    with torch.no_grad():
        ssd.decay.weight.weight.zero_()
        ssd.decay.bias.fill_(torch.tensor(1.0).double().expm1().log())
        ssd.decay.log_rate.copy_((-torch.log1p(-(2.0 ** -torch.arange(5, 7).double()))).log())
    torch.testing.assert_close(ssd(x), retnet(x), **EXACT)


@NAMES
@pytest.mark.parametrize("scale", [0.0, 50.0, 1e3])
def test_inputs_of_any_size_have_finite_outputs_and_gradients(name, scale):
    torch.manual_seed(0)
    layer = build(name, Geometry(dim=16, heads=2, length=300, causal=True))
    x = (scale * tokens(300).float()).requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_images_have_no_order_to_forget_in():
    with pytest.raises(SetupError, match="a decay needs an order"):
        layer_of("gla", False)

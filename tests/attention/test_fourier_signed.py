"""Odd powers of sinc: their formula with its signs, and that nobody gets them unasked."""

import pytest
import torch

from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import layer_of, projected, tokens


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("power", "eps"), [(1, 0.0), (3, 1e-2)])
def test_weights_have_the_sign_of_the_product(power, eps, causal):
    layer = layer_of("fourier", causal, power=power, eps=eps, allow_negative=True)
    with torch.no_grad():
        layer.radius.fill_(1.3)
    q, k, v, mixed = projected(layer, tokens(7, batch=1))
    maps, negative = layer.maps(q, k), 0
    for h in range(2):
        for i in range(7):
            seen = i + 1 if causal else 7
            z = 1.3 * (q[0, h, i] - k[0, h, :seen]) / torch.pi
            w = torch.sinc(z).prod(-1) ** power  # torch's sinc is sin(pi x) / (pi x)
            negative += int((w < 0).sum())
            torch.testing.assert_close(mixed[0, h, i], w @ v[0, h, :seen] / (eps + w.sum()), rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(maps[0, h, i, :seen], w / (eps + w.sum()), rtol=1e-8, atol=1e-8)
    assert negative > 5


def test_gradients_are_finite_where_a_query_equals_a_key():
    """As many do in 16 bits."""
    layer = layer_of("fourier", power=3, eps=0.1, allow_negative=True)
    q, _, v, _ = (t.detach() for t in projected(layer, tokens(4, batch=1)))
    x = q.clone().requires_grad_()
    layer.mix(x, q.clone(), v, v).sum().backward()
    assert x.grad.isfinite().all()


def test_gradients_are_those_of_the_product():
    layer = layer_of("fourier", power=3, eps=0.1, allow_negative=True)
    q, k, v, _ = (t.detach() for t in projected(layer, tokens(4, batch=1)))
    radius = layer.radius.item()
    x, y = q.clone().requires_grad_(), q.clone().requires_grad_()
    layer.mix(x, k, v, v).square().sum().backward()
    w = torch.sinc(radius * (y[..., :, None, :] - k[..., None, :, :]) / torch.pi).prod(-1) ** 3
    (w @ v / (0.1 + w.sum(-1, keepdim=True))).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-7, atol=1e-9)


def test_odd_powers_have_to_be_asked_for():
    with pytest.raises(
        SetupError, match=r"power must be an even integer >= 2, got 3: .*set attention.allow_negative=tru"
    ):
        layer_of("fourier", power=3)
    with pytest.raises(SetupError, match="got -1"):
        layer_of("fourier", power=-1, allow_negative=True)
    with pytest.raises(SetupError, match=r"attention.backend=fused has no odd powers, got attention.power=3"):
        layer_of("fourier", power=3, allow_negative=True, backend="fused")
    assert layer_of("fourier", power=3, allow_negative=True).backend_name(torch.device("cpu")) == "reference"


@pytest.mark.parametrize("power", [2, 4])
def test_the_knob_changes_nothing_for_even_powers(power):
    one, other = (layer_of("fourier", power=power, allow_negative=allowed) for allowed in (True, False))
    assert torch.equal(one(tokens(7)), other(tokens(7)))

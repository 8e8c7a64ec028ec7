"""Null keys: the formula in a plain loop, the limits, and the learned eps of Fourier attention."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.log_kernel import LogKernel
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, rows, sinc_weights, tokens


@BOTH
@pytest.mark.parametrize(("name", "kernel"), [("softmax1", "dot"), ("sink", "dot"), ("sink", "gaussian")])
def test_a_null_key_is_one_more_term_of_the_sum(name, kernel, causal):
    layer = layer_of(name, causal, kernel=kernel)
    for h, q, k, v, y in rows(layer, causal):
        weights = (k @ q / 8**0.5 if kernel == "dot" else -(q - k).square().sum(-1) / (2 * 8**0.5)).exp()
        null = 1.0 if name == "softmax1" else layer.logit[h].exp()
        torch.testing.assert_close(y, weights @ v / (null + weights.sum()), **EXACT)


@BOTH
def test_a_learned_eps_is_fouriers_eps(causal):
    layer = layer_of("fourier_sink", causal)
    for h, q, k, v, y in rows(layer, causal):
        weights = sinc_weights(q, k, layer.log_kernel.radius)
        torch.testing.assert_close(y, weights @ v / (layer.log_eps[h].exp() + weights.sum()), **EXACT)


def test_it_starts_as_fourier_attention():
    geometry = Geometry(dim=16, heads=2, length=9, causal=True)
    learned = attention.build("fourier_sink", geometry, eps=1e-3).double()
    fixed = attention.build("fourier", geometry, eps=1e-3, radius="matched").double()
    fixed.load_state_dict({k: v for k, v in learned.state_dict().items() if k in fixed.state_dict()}, strict=False)
    torch.testing.assert_close(learned(tokens(9)), fixed(tokens(9)), rtol=0, atol=1e-6)  # log eps in float32


def test_without_a_null_key_it_is_softmax_and_where_all_is_far_it_is_nothing():
    layer, softmax = layer_of("sink", True), layer_of("softmax", True)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.logit.fill_(-200.0)
        torch.testing.assert_close(layer(tokens(9)), softmax(tokens(9)), **EXACT)
        q, k, v = (
            torch.ones(1, 2, 1, 8).double(),
            -100 * torch.ones(1, 2, 5, 8).double(),
            torch.ones(1, 2, 5, 8).double(),
        )
        layer.logit.zero_()
        assert layer.mix(q, k, v, v).abs().max() < 1e-100


def test_the_attended_share_is_that_of_the_last_query():
    layer, x = layer_of("softmax1", True), tokens(9)
    layer.train()
    layer.eval()
    layer(x)
    q, k, _ = layer.project(x)
    assert layer.diagnostics() == {"attended_share": pytest.approx(layer.maps(q, k)[:, :, -1].sum(-1).mean().item())}


@pytest.mark.parametrize("radius", [0.7, -0.7])
def test_gradients_of_the_sinc_product(radius):
    """Against autograd of the formula. Training may take R below 0: the same kernel, the other sign of its gradient."""
    kernel = LogKernel("sinc", radius=radius).double()
    q, k = (torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    grads = []
    for formula in (kernel, lambda q, k: sinc_weights(q[:, :, None], k[:, None], kernel.radius).log()):
        leaves = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        value = (formula(*leaves) * torch.arange(50.0).double().view(2, 5, 5)).sum()
        grads.append([value, *torch.autograd.grad(value, [*leaves, kernel.radius])])
    for own, expected in zip(*grads, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["sinc", "disc"])
def test_recomputing_the_matrix_changes_no_gradient(kind):
    kernel = LogKernel(kind).double()
    q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    leaves = q.requires_grad_(), k.requires_grad_(), kernel.radius
    expected = torch.autograd.grad(kernel(q, k).tanh().sum(), leaves)
    found = torch.autograd.grad(checkpoint(lambda q, k: kernel(q, k).tanh(), q, k, use_reentrant=False).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)

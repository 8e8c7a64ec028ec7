"""Fourier attention over discs in frequency: its integral, its gradients, and rotations of q and k."""

import math

import pytest
import torch
from scipy import special
from scipy.integrate import dblquad

from fourierformer.attention.engines.log_kernel import LogKernel
from fourierformer.attention.mechanisms import fourier_disc
from tests.helpers.sinc_cases import needs_compiled
from tests.helpers.zoo_cases import BOTH, layer_of, rows


def disc_weights(q, k, radius, power=4):
    r = (q - k).unflatten(-1, (-1, 2)).norm(dim=-1) * radius
    return (2 * torch.as_tensor(special.j1(r.detach().numpy())) / r).pow(power).prod(-1)


@BOTH
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_discs_in_frequency(causal, eps):
    layer = layer_of("fourier_disc", causal, eps=eps)
    for _, q, k, v, y in rows(layer, causal):
        weights = disc_weights(q, k, layer.log_kernel.radius)
        torch.testing.assert_close(y, weights @ v / (eps + weights.sum()), rtol=0, atol=1e-8)


@needs_compiled
@BOTH
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_matrices_and_compiled_kernel_give_the_same(causal, eps, monkeypatch):
    layer = layer_of("fourier_disc", causal, eps=eps).eval()
    x, keep = torch.randn(2, 9, layer.geometry.dim, dtype=torch.float64), torch.ones(2, 9, dtype=torch.bool)
    keep[0, 6:] = False
    found = []
    for obstacle in (None, "it is not asked for"):
        monkeypatch.setattr(fourier_disc, "why_not_compiled", lambda q, power, obstacle=obstacle: obstacle)
        assert layer.backend_name(torch.device("cpu")) == ("torch" if obstacle else "compiled")
        found += [(layer(x, keep=keep), layer.diagnostics())]
    (ours, numbers), (theirs, expected) = found
    torch.testing.assert_close(ours[keep], theirs[keep], rtol=1e-6, atol=1e-6)  # torch's Bessel functions
    assert numbers == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("u", [(0.3, 0.0), (1.0, -2.0), (4.0, 3.0)])
def test_a_disc_is_the_fourier_integral_over_a_disc(u):
    """integral of cos(w.u) over |w| <= R, by quadrature, relative to the area of the disc."""
    radius, kernel = 1.3, LogKernel("disc", radius=1.3, power=1).double()

    def integrand(angle, length):
        return length * math.cos(length * (u[0] * math.cos(angle) + u[1] * math.sin(angle)))

    integral, _ = dblquad(integrand, 0, radius, 0, 2 * math.pi, epsabs=1e-10)
    point, origin = torch.tensor([[u], [(0.0, 0.0)]], dtype=torch.float64)
    assert kernel(point[None], origin[None]).exp().item() == pytest.approx(
        abs(integral) / (math.pi * radius**2), abs=1e-7
    )


def test_near_zero_a_disc_is_as_wide_as_a_square():
    q, k = 0.1 * torch.randn(2, 1, 50, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    disc, square = LogKernel("disc", radius=0.5 * (4 / 3) ** 0.5).double(), LogKernel("sinc", radius=0.5).double()
    torch.testing.assert_close(disc(q, k), square(q, k), rtol=2e-3, atol=0)


def test_gradients_of_the_disc_product():
    kernel = LogKernel("disc", radius=1.7, power=4).double()
    q, k = (2 * torch.randn(1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    k[0, 0] = q[0, 0] + 1e-3  # by the series
    torch.autograd.gradcheck(lambda *leaves: kernel(*leaves), (q.requires_grad_(), k.requires_grad_()))
    (slope,) = torch.autograd.grad(kernel(q, k).sum(), kernel.radius)
    values = []
    for change in (1e-6, -1e-6):
        with torch.no_grad():
            kernel.radius.add_(change)
            values.append(kernel(q, k).sum().item())
            kernel.radius.sub_(change)
    assert slope.item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "invariant"), [("fourier_disc", True), ("gaussian", True), ("fourier_matched", False)]
)
def test_rotations_of_pairs_of_coordinates(name, invariant):
    """Rotary positions rotate q and k of positions i and j by multiples of i and j: only i - j may matter."""
    layer = layer_of(name)
    with torch.no_grad():
        for parameter in (p for n, p in layer.named_parameters() if n.endswith("radius")):
            parameter.fill_(1.0)
    q, k = (torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))

    def rotated(x, first):
        angles = (torch.arange(6)[:, None] + first) * 10000.0 ** (-torch.arange(4) / 4)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angles)
        return torch.view_as_real(pairs).flatten(-2)

    maps = [layer.maps(rotated(q, first), rotated(k, first)) for first in (0, 17)]
    assert ((maps[0] - maps[1]).abs().max() < 1e-6) == invariant

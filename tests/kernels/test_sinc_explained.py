"""The explanation of the GPU kernel computes the printed formula, in float64."""

import pytest
import torch

from fourierformer.kernels.sinc.explained import (
    features,
    fourier_attention_by_features,
    frequencies,
    slope_features,
)
from fourierformer.kernels.sinc.reference import sinc_attention_reference


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("count", [2, 4])
def test_the_frequencies_are_exact_for_even_polynomials_of_their_degree(count):
    nodes, weights = frequencies(count)
    for degree in range(0, 4 * count, 2):
        assert float(weights @ nodes**degree) == pytest.approx(1 / (degree + 1), rel=1e-12)
    assert float(weights @ nodes ** (4 * count)) != pytest.approx(1 / (4 * count + 1), rel=1e-6)


@pytest.mark.parametrize(("count", "reach"), [(8, 16.0), (16, 42.0)])
def test_a_dot_product_of_features_is_sinc_up_to_its_reach(count, reach):
    x, y = (
        torch.linspace(-reach / 2, reach / 2, 101, dtype=torch.float64),
        torch.tensor([reach / 2], dtype=torch.float64),
    )
    z = x[:, None] - y
    sinc = torch.special.sinc(z / torch.pi)
    torch.testing.assert_close(features(x, count) @ features(y, count).T, sinc, rtol=0, atol=2e-7)
    beyond = features(2 * x, count) @ features(2 * y, count).T - torch.special.sinc(2 * z / torch.pi)
    assert beyond.abs().max() > 1e-3  # it is a limit


def test_slope_features_give_the_derivative():
    x, y = normal(20), normal(20, seed=1)
    z = x[:, None] - y
    slope = torch.cos(z) / z - torch.sin(z) / z**2
    torch.testing.assert_close(slope_features(x) @ features(y).T, slope, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("width", "radius"), [(16, 0.43), (16, 2.0), (64, 0.31)])
def test_it_is_fourier_attention_with_its_gradients(width, radius):
    q, k, v = (normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(((9, width), (11, width), (11, 5))))
    found = fourier_attention_by_features(q, k, v, radius)
    expected = sinc_attention_reference(
        *(x[None, None] for x in (q, k, v)), torch.tensor(radius), power=4, eps=1e-6, causal=False
    )[0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    above = normal(*found.shape, seed=5)
    for ours, theirs in zip(
        torch.autograd.grad((found * above).sum(), (q, k, v)),
        torch.autograd.grad((expected * above).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

"""Random features against the kernels they estimate. Every mean is taken over independent draws, with its error."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fourierformer.attention import Geometry
from fourierformer.attention.engines.features import (
    draw_frequencies,
    elu_features,
    hyperbolic_exponents,
    orthogonal_gaussian,
    positive_exponents,
    relu_features,
    trigonometric_features,
)

WIDTH, DRAWS = 8, 4000


@pytest.fixture(scope="module")
def draws() -> torch.Tensor:
    """(DRAWS, WIDTH, WIDTH): independent orthogonal blocks."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([orthogonal_gaussian(WIDTH, WIDTH, generator) for _ in range(DRAWS)])


def pair(std: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(std * torch.randn(1, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))


def test_rows_are_orthogonal_inside_blocks():
    w = orthogonal_gaussian(11, 4, torch.Generator().manual_seed(3))
    assert w.shape == (11, 4)
    for block in (w[:4], w[4:8], w[8:]):
        directions = F.normalize(block, dim=-1)
        torch.testing.assert_close(directions @ directions.mT, torch.eye(len(block), dtype=w.dtype))
    across = F.normalize(w[:4], dim=-1) @ F.normalize(w[4:8], dim=-1).mT
    assert across.abs().max() > 0.1


def test_rows_are_standard_normal(draws):
    """E omega = 0, E omega omega^T = I, and the lengths are those of normal vectors: E |omega|^4 = D (D + 2)."""
    se = DRAWS**-0.5
    assert draws.mean(0).abs().max() < 5 * se
    second = torch.einsum("nri,nrj->rij", draws, draws) / DRAWS
    assert (second - torch.eye(WIDTH)).abs().max() < 5 * math.sqrt(2) * se
    fourth = draws.square().sum(-1).square()
    assert abs(fourth.mean() - WIDTH * (WIDTH + 2)) < 5 * fourth.std() / math.sqrt(fourth.numel())


def test_without_the_signs_of_r_the_mean_is_not_0(draws):
    """What the sign fix is for: LAPACK's own Q fails the bound that the draws pass above."""
    generator = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(DRAWS, WIDTH, WIDTH, generator=generator, dtype=torch.float64))
    raw = q.mT * draws.norm(dim=-1, keepdim=True)
    assert raw.mean(0).abs().max() > 20 * DRAWS**-0.5


def kernels(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    angle = torch.acos(F.cosine_similarity(x, y))
    arc_cosine = x.norm() * y.norm() * (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi
    return {
        "positive": (x * y).sum().exp().item(),
        "hyperbolic": (x * y).sum().exp().item(),
        "trigonometric": (-(x - y).square().sum() / 2).exp().item(),
        "relu": arc_cosine.item(),
    }


def positive(x, w):
    return positive_exponents(x, w).exp() / math.sqrt(w.shape[-2])


def hyperbolic(x, w):
    return hyperbolic_exponents(x, w).exp() / math.sqrt(2 * w.shape[-2])


MAPS = {"positive": positive, "hyperbolic": hyperbolic, "trigonometric": trigonometric_features, "relu": relu_features}


def estimates(name: str, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (MAPS[name](x, w) * MAPS[name](y, w)).sum(-1).flatten()


@pytest.mark.parametrize("name", MAPS)
def test_products_of_features_have_the_kernel_as_their_mean(name, draws):
    x, y = pair(0.5)
    products, expected = estimates(name, x, y, draws), kernels(x, y)[name]
    error = products.std() / math.sqrt(DRAWS)
    assert error < 0.02 * expected  # precise enough for the next line to fail where it should
    assert abs(products.mean() - expected) < 4 * error


@pytest.mark.parametrize("name", MAPS)
def test_orthogonal_frequencies_vary_less_than_independent_ones(name, draws):
    x, y = pair(0.5)
    independent = torch.randn(draws.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert estimates(name, x, y, draws).var() < estimates(name, x, y, independent).var()


def test_both_signs_vary_less_than_twice_as_many_frequencies(draws):
    x, y = pair(0.5)
    twice = estimates("positive", x, y, draws[: DRAWS // 2]) + estimates("positive", x, y, draws[DRAWS // 2 :])
    assert estimates("hyperbolic", x, y, draws).var() < (twice / 2).var()


def test_variance_of_positive_features_is_the_published_one():
    """(exp(|x + y|^2) - 1) exp(2 x.y) per frequency (lemma 2 of arXiv 2009.14794, independent frequencies)."""
    x, y = pair(0.3)
    w = torch.randn(200_000, 1, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = ((x + y).square().sum().exp() - 1) * (2 * (x * y).sum()).exp()
    torch.testing.assert_close(estimates("positive", x, y, w).var(), expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("size", [1.0, 50.0])
def test_exponents_are_at_most_half_of_the_squared_frequency(size):
    """So exp stays below float32's 3.4e38 = exp(88.7) at D = 64: of 4 x 256 frequencies the longest gives less than
    exp(65)."""
    w = draw_frequencies(Geometry(dim=256, heads=4, length=8, causal=True), 256, "test")
    x = torch.cat([w, size * w, -size * w, torch.zeros(4, 1, 64)], dim=1)
    bound = w.square().sum(-1) / 2
    assert (positive_exponents(x, w) <= bound[:, None] * (1 + 1e-4) + 1e-3).all()
    assert bound.max() < 65
    assert positive_exponents(x, w).exp().isfinite().all()


def test_elu_features_are_elu_plus_1_and_stay_positive():
    x = torch.linspace(-30, 5, 71, dtype=torch.float64)
    torch.testing.assert_close(elu_features(x), F.elu(x) + 1, rtol=0, atol=1e-15)
    assert (F.elu(torch.tensor(-30.0)) + 1) == 0  # what float32 makes of the usual form
    assert elu_features(torch.tensor(-30.0)).item() == pytest.approx(math.exp(-30))


def test_a_draw_follows_from_its_purpose_and_differs_between_heads():
    geometry = Geometry(dim=12, heads=3, length=8, causal=True, seed=0, layer=1)
    one = draw_frequencies(geometry, 10, "performer")
    assert one.shape == (3, 10, 4)
    assert one.dtype == torch.float32
    assert torch.equal(one, draw_frequencies(geometry, 10, "performer"))
    assert not torch.equal(one, draw_frequencies(geometry, 10, "rfa"))
    assert not torch.equal(one, draw_frequencies(replace(geometry, seed=1, layer=0), 10, "performer"))
    assert not torch.equal(one[0], one[1])

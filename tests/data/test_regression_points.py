"""Sequences of in-context regression: moments of features and functions, and the estimators that are computed."""

import math
from functools import partial

import pytest
import torch

from fourierformer.data.regression import baselines
from fourierformer.data.regression.corpus import RegressionCorpus
from fourierformer.data.regression.sequences import covariance_root, draw, prior
from fourierformer.data.regression.spec import RegressionData
from fourierformer.errors import SetupError

DEFAULTS = {
    **{"name": "regression", "dimension": 3, "context": 20, "queries": 4, "covariance": "equicorrelated", "rho": 0.6},
    **{"smooth_in": "features", "length_scale": 1.0, "noise": 0.1, "seed": 0, "held_out": 300},
}


def data(**changes) -> RegressionData:
    return RegressionData(**(DEFAULTS | changes))


@pytest.mark.parametrize("covariance", ["equicorrelated", "axes", "rotated"])
def test_the_covariance_of_the_features(covariance):
    root = covariance_root(data(covariance=covariance))
    found = root @ root
    expected = torch.tensor([0.4, 0.4, 2.2], dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.eigvalsh(found), expected)
    if covariance == "equicorrelated":
        torch.testing.assert_close(found, torch.full_like(found, 0.6).fill_diagonal_(1.0))
    if covariance == "axes":
        torch.testing.assert_close(found, found.diagonal().diag())
    features = draw(data(covariance=covariance, context=200), 300, seed=1).features.double().flatten(0, 1)
    torch.testing.assert_close(features.T.cov(), found, rtol=0, atol=0.05)


@pytest.mark.parametrize("smooth_in", ["features", "whitened"])
def test_functions_have_the_stated_covariance(smooth_in):
    """Over many functions at the same distance, f(x) f(x') averages to the covariance at that distance."""
    config = data(smooth_in=smooth_in, context=1, queries=2, noise=1e-6)
    points = draw(config, 60_000, seed=3)
    a, b = points.queries.double().unbind(1)
    inverse = torch.linalg.inv(torch.full((3, 3), 0.6, dtype=torch.float64).fill_diagonal_(1.0))
    metric = inverse if smooth_in == "whitened" else torch.eye(3, dtype=torch.float64)
    squares = ((a - b) @ metric * (a - b)).sum(-1)
    products = points.exact.double().prod(1)
    for low, high in ((0.0, 0.5), (0.5, 1.5), (1.5, 4.0)):
        chosen = (low <= squares) & (squares < high)
        expected = torch.exp(-squares[chosen] / 2).mean()
        deviation = products[chosen].std() / math.sqrt(chosen.sum())
        assert abs(products[chosen].mean() - expected) < 4 * deviation
    assert points.exact.var().item() == pytest.approx(1, abs=0.02)


def test_noise_is_added_to_values_only():
    points = draw(data(noise=0.5), 2000, seed=2)
    noise = points.noisy - points.exact
    assert noise.std().item() == pytest.approx(0.5, rel=0.03)
    assert abs((noise * points.exact).mean().item()) < 0.02


def test_a_draw_is_a_function_of_its_seed():
    assert torch.equal(draw(data(), 3, 5).values, draw(data(), 3, 5).values)
    assert not torch.equal(draw(data(), 3, 5).values, draw(data(), 3, 6).values)


def test_the_error_of_the_posterior_is_its_variance():
    """A fact of Gaussian processes: the mean squared error of the posterior mean is the mean posterior variance."""
    config = data(smooth_in="whitened", noise=0.3)
    points = draw(config, 2000, seed=4).double()
    within = prior(config, points.features, points.features) + 0.09 * torch.eye(20, dtype=torch.float64)
    between = prior(config, points.queries, points.features)
    variance = 1 - (between * torch.linalg.solve(within, between.mT).mT).sum(-1)
    surplus = (baselines.posterior_mean(config, points) - points.exact).square() - variance
    assert abs(surplus.mean()) < 4 * surplus.mean(1).std() / math.sqrt(len(points))
    assert 0.2 < variance.mean() < 0.6


def test_the_posterior_of_one_pair_shrinks_its_value_by_the_noise():
    """k(q, x) y / (k(x, x) + noise^2): by hand for a noise of 0.5, where a wrong power would make it 0.5 for 0.25."""
    config = data(context=1, noise=0.5)
    points = draw(config, 50, seed=5).double()
    squares = (points.queries - points.features).square().sum(-1)
    expected = torch.exp(-squares / 2) * points.values / (1 + 0.5**2)
    torch.testing.assert_close(baselines.posterior_mean(config, points), expected, rtol=1e-5, atol=0)


def test_the_seed_of_the_data_decides_rotation_and_held_out_sequences():
    one, other = (data(covariance="rotated", seed=seed, held_out=3) for seed in (0, 1))
    assert torch.equal(covariance_root(one), covariance_root(data(covariance="rotated", seed=0)))
    assert not torch.allclose(covariance_root(one), covariance_root(other))
    held_out = [RegressionCorpus(config).splits["test"].noisy for config in (data(), data(), data(seed=1))]
    assert torch.equal(held_out[0], held_out[1])
    assert not torch.equal(held_out[0], held_out[2])


def test_the_posterior_beats_the_mean_of_the_context():
    points = draw(data(context=40), 300, seed=2).double()
    assert torch.equal(baselines.mean_of_context(points)[7], points.values[7].mean().expand(4))
    best = baselines.error(points, partial(baselines.posterior_mean, data(context=40)))
    assert best < 0.5 * baselines.error(points, baselines.mean_of_context)


def test_the_optimum_is_noted():
    corpus = RegressionCorpus(data())
    assert f"error on test: {corpus.optimum('test'):.4f} of the GP posterior" in corpus.notes[0]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rho": 1.0}, "between -0.5 and 1: data.rho=0.9"),
        ({"rho": -0.5}, "between -0.5 and 1"),
        ({"noise": 0.0}, "data.noise"),
        ({"length_scale": 0.0}, "data.length_scale"),
        ({"context": 0}, "data.context"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(changes, line):
    with pytest.raises(SetupError, match=line) as error:
        data(**changes)
    assert "\n" not in str(error.value)

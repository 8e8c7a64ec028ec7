"""One layer of attention is the kernel estimator of its formula; more layers fit residuals."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fourierformer import attention
from fourierformer.data.regression.sequences import draw
from fourierformer.errors import SetupError
from fourierformer.models.config import RegressionConfig
from fourierformer.models.regression import RegressionModel
from tests.data.test_regression_points import data


def model(name="gaussian", *, layers=1, projections="identity", normalise=False, dimension=3, **knobs):
    config = RegressionConfig(name="t", layers=layers, projections=projections, normalise=normalise)
    return RegressionModel(config, dimension, 20, partial(attention.build, name, **knobs)).double()


@pytest.fixture
def points():
    return draw(data(), 5, seed=1).double()


def test_gaussian_attention_is_nadaraya_watson(points):
    """Weights exp(-s^2 |x - x_j|^2 / (2 sqrt(d))), here with s = exp(1/2) and d = 3."""
    net = model()
    with torch.no_grad():
        net.layers[0].log_scale.fill_(0.5)
    offsets = points.queries[:, :, None] - points.features[:, None]
    weights = torch.exp(-math.exp(2 * 0.5) * offsets.square().sum(-1) / (2 * math.sqrt(3)))
    expected = (weights * points.values[:, None]).sum(-1) / weights.sum(-1)
    torch.testing.assert_close(net(points), expected)


def test_sinc_attention_is_its_formula(points):
    net = model("fourier", radius=1.5, eps=0.0)
    offsets = points.queries[:, :, None] - points.features[:, None]
    weights = torch.sinc(1.5 * offsets / torch.pi).pow(4).prod(-1)
    expected = (weights * points.values[:, None]).sum(-1) / weights.sum(-1)
    torch.testing.assert_close(net(points), expected)


def test_learned_projections_and_norms(points):
    net = model("softmax", projections="learned", normalise=True)
    with torch.no_grad():
        for weight in (net.layers[0].of_queries, net.layers[0].of_keys):
            weight.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))
    q = F.normalize(points.queries @ net.layers[0].of_queries.T, dim=-1) * 3**0.5
    k = F.normalize(points.features @ net.layers[0].of_keys.T, dim=-1) * 3**0.5
    expected = torch.softmax(q @ k.mT / 3**0.5, -1) @ points.values[..., None]
    torch.testing.assert_close(net(points), expected[..., 0])


def test_two_layers_fit_residuals(points):
    """With the smoother A on the context and B to the queries: B y + B (y - A y)."""
    one, two = model(), model(layers=2)
    context = draw(data(), 5, seed=1).double()
    at_context = type(context)(context.features, context.values, context.features, context.values, context.values)
    residuals = at_context.values - one(at_context)
    again = type(context)(context.features, residuals, context.queries, context.noisy, context.exact)
    torch.testing.assert_close(two(points), one(points) + one(again))


def test_parameters_are_the_scale_and_what_is_learned():
    assert sum(p.numel() for p in model().parameters()) == 1
    assert sum(p.numel() for p in model(projections="learned").parameters()) == 1 + 2 * 9


def test_every_estimator_has_a_number_of_its_own():
    assert [layer.attention.geometry.layer for layer in model(layers=3).layers] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "reason"), [("lsh", "hashes compare tokens"), ("grouped_query", "projections of its own")]
)
def test_a_mechanism_that_cannot_be_an_estimator_is_refused(name, reason):
    with pytest.raises(SetupError, match=reason):
        model(name, dimension=4)


OWN_PROJECTIONS = {
    n for n in attention.available() if attention.mechanism(n).project is not attention.Attention.project
}
ESTIMATORS = sorted({*attention.available(causal=False, cross=True)} - OWN_PROJECTIONS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_other_mechanism_estimates(name):
    batch = draw(data(dimension=4), 5, seed=1).double()
    estimate = model(name, projections="learned", dimension=4)(batch)
    estimate.sum().backward()
    assert estimate.shape == batch.exact.shape
    assert estimate.isfinite().all()

"""The task of in-context regression: errors by hand, shares of a step."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.data.regression.baselines import posterior_mean
from fourierformer.data.regression.corpus import RegressionCorpus
from fourierformer.data.regression.sequences import draw
from fourierformer.data.regression.spec import RegressionData
from fourierformer.models.config import RegressionConfig
from fourierformer.models.regression import RegressionModel
from fourierformer.seeds import seed_of
from fourierformer.tasks.regression_objective import RegressionObjective
from tests.data.test_regression_points import data

STILL = (lambda: None, lambda *progress: None)


def parts(**options) -> tuple[RegressionObjective, RegressionModel]:
    config = RegressionConfig(name="t", layers=1, projections="identity", normalise=False)
    options = {"micro_batch_size": None, "device": torch.device("cpu"), "seed": 1} | options
    model = RegressionModel(config, 3, 20, partial(attention.build, "gaussian"))
    return RegressionObjective(RegressionCorpus(data(held_out=6)), global_batch_size=8, **options), model


class Off(torch.nn.Module):
    def forward(self, points):
        return points.exact + 0.5


class Posterior(torch.nn.Module):
    """The best possible estimator."""

    def __init__(self, data: RegressionData):
        super().__init__()
        self.data = data

    def forward(self, points):
        return posterior_mean(self.data, points.double())


@pytest.mark.parametrize("tokens_per_forward", [1, 60, 10_000])
def test_the_error_is_to_the_function_without_noise(tokens_per_forward):
    objective, _ = parts(tokens_per_forward=tokens_per_forward)
    found = objective.measure(Off(), "test", "queries", *STILL)
    assert found["mse"] == pytest.approx(0.25)
    assert found["ratio"] == pytest.approx(0.25 / objective.corpus.optimum("test"))
    assert (found["context"], found["queries"], found["sequences"]) == (20, 4, 6)


def test_max_tokens_limits_the_sequences():
    objective, model = parts(max_tokens=24 * 4)
    assert objective.measure(model, "valid", "queries", *STILL)["sequences"] == 4


@pytest.mark.parametrize("sequences", [1, 2, 6])
def test_the_posterior_has_the_ratio_1_on_any_number_of_sequences(sequences):
    objective, _ = parts(max_tokens=24 * sequences)
    posterior = Posterior(objective.data)
    assert objective.measure(posterior, "valid", "queries", *STILL)["ratio"] == pytest.approx(1, rel=1e-5)


def test_the_loss_is_to_noisy_values_of_the_step():
    objective, model = parts()
    (batch,) = objective.micro_batches(3)
    drawn = draw(data(), 8, seed_of(0, "train", 1, 3))
    torch.testing.assert_close(objective.loss(model, batch), (model(drawn) - drawn.noisy).square().mean())

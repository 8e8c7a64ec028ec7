"""Estimators that are computed, not trained: the best possible one, and the simplest one.

Each takes a batch in float64 and returns estimates at its queries, (B, Q).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourierformer.data.regression.sequences import JITTER, Points, prior
from fourierformer.data.regression.spec import RegressionData

Estimator = Callable[[Points], Tensor]


def posterior_mean(data: RegressionData, points: Points) -> Tensor:
    """The mean of f given the context, with the true covariance and noise: no estimator has a smaller mean error."""
    within, between = (prior(data, x, points.features) for x in (points.features, points.queries))
    noise = (data.noise**2 + JITTER) * torch.eye(within.shape[-1], dtype=within.dtype)
    return (between @ torch.linalg.solve(within + noise, points.values[..., None]))[..., 0]


def mean_of_context(points: Points) -> Tensor:
    return points.values.mean(1, keepdim=True).expand_as(points.exact)


def error(points: Points, estimator: Estimator) -> float:
    return (estimator(points) - points.exact).square().mean().item()

"""Estimators that are computed, not trained: the best possible one, and classical ones with settings chosen on valid.

Each takes a batch in float64 and returns estimates at its queries, (B, Q).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fourierformer.data.regression.sequences import JITTER, Points, prior
from fourierformer.data.regression.spec import RegressionData

Estimator = Callable[[Points], Tensor]
BANDWIDTHS = [0.1 * 2 ** (i / 2) for i in range(12)]  # 0.1 to 4.5
RIDGES = [0.1, 0.03, 0.01, 0.003, 0.001]
NEIGHBOURS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def posterior_mean(data: RegressionData, points: Points) -> Tensor:
    """The mean of f given the context, with the true covariance and noise: no estimator has a smaller mean error."""
    within = prior(data, points.features, points.features)
    return _ridge_regression(within, prior(data, points.queries, points.features), data.noise**2 + JITTER, points)


def mean_of_context(points: Points) -> Tensor:
    return points.values.mean(1, keepdim=True).expand_as(points.exact)


def nadaraya_watson(bandwidth: float, points: Points) -> Tensor:
    """sum_j w_j y_j / sum_j w_j with w_j = exp(-|x - x_j|^2 / (2 bandwidth^2))."""
    weights = torch.softmax(_log_kernel(bandwidth, points.queries, points.features), dim=-1)
    return (weights @ points.values[..., None])[..., 0]


def kernel_ridge(bandwidth: float, ridge: float, points: Points) -> Tensor:
    within, between = (_log_kernel(bandwidth, a, points.features).exp() for a in (points.features, points.queries))
    return _ridge_regression(within, between, ridge, points)


def nearest(neighbours: int, points: Points) -> Tensor:
    """The mean value of the nearest pairs."""
    found = torch.cdist(points.queries, points.features).topk(neighbours, largest=False).indices
    return points.values[:, None].expand(-1, found.shape[1], -1).gather(2, found).mean(-1)


def candidates(data: RegressionData) -> dict[str, list[Estimator]]:
    """Every baseline with all its settings."""
    return {
        "GP posterior": [partial(posterior_mean, data)],
        "kernel ridge": [partial(kernel_ridge, bandwidth, ridge) for bandwidth in BANDWIDTHS for ridge in RIDGES],
        "Nadaraya-Watson": [partial(nadaraya_watson, bandwidth) for bandwidth in BANDWIDTHS],
        "nearest neighbours": [partial(nearest, k) for k in NEIGHBOURS if k <= data.context],
        "mean of the context": [mean_of_context],
    }


def baseline_errors(data: RegressionData, valid: Points, test: Points) -> dict[str, float]:
    """Mean squared error on test of each baseline, at the setting with the smallest error on valid."""
    valid, test = valid.double(), test.double()
    chosen = {name: min(all_, key=partial(error, valid)) for name, all_ in candidates(data).items()}
    return {name: error(test, estimator) for name, estimator in chosen.items()}


def error(points: Points, estimator: Estimator) -> float:
    return (estimator(points) - points.exact).square().mean().item()


def _log_kernel(bandwidth: float, a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b).square() / (2 * bandwidth**2)


def _ridge_regression(within: Tensor, between: Tensor, ridge: float, points: Points) -> Tensor:
    """between (within + ridge I)^-1 y, for covariances (B, N, N) within the context and (B, Q, N) to the queries."""
    eye = torch.eye(within.shape[-1], dtype=within.dtype)
    return (between @ torch.linalg.solve(within + ridge * eye, points.values[..., None]))[..., 0]

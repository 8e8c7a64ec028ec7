"""Errors of classical estimators on the test split of each correlation, into baselines.csv: two minutes.

python -m studies.regression.baselines

The settings are those with the smallest error on valid.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import yaml
from torch import Tensor

from fourierformer.data.regression.baselines import Estimator, error, mean_of_context
from fourierformer.data.regression.corpus import RegressionCorpus
from fourierformer.data.regression.sequences import Points
from fourierformer.data.regression.spec import RegressionData
from fourierformer.files import write_csv
from fourierformer.provenance import CONFIGS, header

HERE = Path(__file__).resolve().parent
RHOS = (0.0, 0.5, 0.9, 0.99)
BANDWIDTHS = [0.1 * 2 ** (i / 2) for i in range(12)]  # 0.1 to 4.5
RIDGES = [0.1, 0.03, 0.01, 0.003, 0.001]
NEIGHBOURS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def nadaraya_watson(bandwidth: float, points: Points) -> Tensor:
    """sum_j w_j y_j / sum_j w_j with w_j = exp(-|x - x_j|^2 / (2 bandwidth^2))."""
    weights = torch.softmax(_log_kernel(bandwidth, points.queries, points.features), dim=-1)
    return (weights @ points.values[..., None])[..., 0]


def kernel_ridge(bandwidth: float, ridge: float, points: Points) -> Tensor:
    """K(x, X) (K(X, X) + ridge I)^-1 y with the same kernel."""
    within, between = (_log_kernel(bandwidth, a, points.features).exp() for a in (points.features, points.queries))
    eye = torch.eye(within.shape[-1], dtype=within.dtype)
    return (between @ torch.linalg.solve(within + ridge * eye, points.values[..., None]))[..., 0]


def nearest(neighbours: int, points: Points) -> Tensor:
    """The mean value of the nearest pairs."""
    found = torch.cdist(points.queries, points.features).topk(neighbours, largest=False).indices
    return points.values[:, None].expand(-1, found.shape[1], -1).gather(2, found).mean(-1)


def _log_kernel(bandwidth: float, a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b).square() / (2 * bandwidth**2)


CANDIDATES: dict[str, dict[str, Estimator]] = {
    "kernel ridge": {f"{b:.2g}, {r:g}": partial(kernel_ridge, b, r) for b in BANDWIDTHS for r in RIDGES},
    "Nadaraya-Watson": {f"{b:.2g}": partial(nadaraya_watson, b) for b in BANDWIDTHS},
    "nearest neighbours": {f"{k}": partial(nearest, k) for k in NEIGHBOURS},
    "mean of the context": {"": mean_of_context},
}


def measure(data: RegressionData) -> list[dict]:
    corpus = RegressionCorpus(data)
    valid, test = (corpus.splits[split].double() for split in ("valid", "test"))
    rows = []
    for name, candidates in CANDIDATES.items():
        setting = min(candidates, key=lambda each: error(valid, candidates[each]))
        mse = error(test, candidates[setting])
        row = {"rho": data.rho, "baseline": name, "setting": setting, "mse": mse, "ratio": mse / corpus.optimum("test")}
        rows.append(row)
    return rows


if __name__ == "__main__":
    data = RegressionData(**yaml.safe_load((CONFIGS / "data" / "regression.yaml").read_text()))
    found = [row for rho in RHOS for row in measure(replace(data, rho=rho))]
    write_csv(HERE / "baselines.csv", found, header("-m studies.regression.baselines"), columns=found[0], digits=5)

"""The classical estimators of the study on regression, on three points by hand."""

import math

import pytest
import torch

from fourierformer.data.regression.sequences import Points
from studies.regression import baselines


def test_estimators_by_hand():
    features = torch.tensor([[[0.0], [1.0], [3.0]]], dtype=torch.float64)
    values = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    query = torch.tensor([[[1.0]]], dtype=torch.float64)
    points = Points(features, values, query, torch.zeros(1, 1), torch.zeros(1, 1))
    a, b = math.exp(-1 / 8), math.exp(-4 / 8)
    assert baselines.nadaraya_watson(2.0, points).item() == pytest.approx((a + 2 + 6 * b) / (a + 1 + b))
    assert baselines.nearest(2, points).item() == 1.5
    # no ridge interpolates; a huge one shrinks to (kernel @ y) / ridge
    assert baselines.kernel_ridge(2.0, 0.0, points).item() == pytest.approx(2)
    assert baselines.kernel_ridge(2.0, 1e9, points).item() == pytest.approx((a + 2 + 6 * b) / 1e9)

"""The Gaussian with a learned covariance: its formula, and its limit, the isotropic one."""

import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import layer_of, projected, tokens


@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_the_normal_density_of_the_difference(causal):
    """torch's own density, with the precision L L^T."""
    layer = layer_of("gaussian_full", causal)
    q, k, v, mixed = projected(layer, tokens(9, batch=1))
    for h in range(2):
        lower = torch.zeros(8, 8, dtype=torch.float64)
        lower[tuple(torch.tril_indices(8, 8))] = layer.lower[h].detach()
        density = torch.distributions.MultivariateNormal(torch.zeros(8).double(), precision_matrix=lower @ lower.mT)
        for i in range(9):
            seen = i + 1 if causal else 9
            weights = density.log_prob(q[0, h, i] - k[0, h, :seen]).softmax(0)
            torch.testing.assert_close(mixed[0, h, i], weights @ v[0, h, :seen], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("bandwidth", [None, 2.5])
def test_it_starts_as_the_isotropic_gaussian(bandwidth):
    geometry = Geometry(dim=16, heads=2, length=9, causal=True)
    full, isotropic = (
        attention.build(name, geometry, bandwidth=bandwidth).double() for name in ("gaussian_full", "gaussian")
    )
    isotropic.load_state_dict(full.state_dict(), strict=False)
    torch.testing.assert_close(full(tokens(9)), isotropic(tokens(9)), rtol=0, atol=1e-6)  # L starts in float32
    expected = torch.eye(8).double() / math.sqrt(bandwidth or math.sqrt(8))
    torch.testing.assert_close(full.factor(), expected.expand(2, -1, -1), rtol=0, atol=1e-7)


def test_a_head_learns_as_many_numbers_as_a_covariance_has():
    layer, plain = (attention.build(n, Geometry(32, 4, 9, True)) for n in ("gaussian_full", "gaussian"))
    added = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in plain.parameters())
    assert added == 4 * 8 * 9 // 2


def test_a_bandwidth_is_positive():
    with pytest.raises(SetupError, match=r"attention.bandwidth=0.0: must be at least 1e-06"):
        layer_of("gaussian_full", bandwidth=0.0)

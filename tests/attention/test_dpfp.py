"""The parameter-free projection: its formula, its signs, and linear attention with it."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.dpfp import DPFP, EPS, dpfp_features
from fourierformer.errors import SetupError
from tests.helpers.one_by_one import one_by_one


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(causal: bool = True, **knobs) -> DPFP:
    torch.manual_seed(0)
    return attention.build("dpfp", Geometry(dim=16, heads=2, length=256, causal=causal), **knobs).double()


def test_features_are_products_of_neighbours():
    x = normal(8)
    rectified = [max(s * x[d].item(), 0.0) for s in (1, -1) for d in range(8)]
    for nu in (1, 2, 3, 7):
        expected = [rectified[i] * rectified[(i + j) % 16] for j in range(1, nu + 1) for i in range(16)]
        assert dpfp_features(x, nu).tolist() == expected


def test_features_in_full():
    """r = relu([3, -2, -3, 2]) = [3, 0, 0, 2]: only 2 . 3, across the end, is not 0."""
    assert dpfp_features(torch.tensor([3.0, -2.0]), 1).tolist() == [0, 0, 0, 6]


def test_features_are_positive_and_three_of_four_are_zero():
    features = dpfp_features(normal(1000, 16), 3)
    assert (features >= 0).all()
    assert (features > 0).double().mean().item() == pytest.approx(0.25, abs=0.01)


def test_opposite_vectors_share_no_feature_and_both_have_some():
    """With -relu(x) instead of relu(-x) a vector and its opposite would be the same one."""
    x = normal(100, 16)
    one, other = dpfp_features(x, 3), dpfp_features(-x, 3)
    assert ((one * other) == 0).all()
    assert (one.sum(-1) > 0).all()
    assert (other.sum(-1) > 0).all()


def test_larger_shifts_would_add_nothing():
    """What the limit on nu rests on: shift D gives 0, shift 2 D - j the features of shift j."""
    features = dpfp_features(normal(8), 15).unflatten(-1, (15, 16))
    assert (features[7] == 0).all()
    for j in range(1, 8):
        torch.testing.assert_close(features[15 - j].sort().values, features[j - 1].sort().values)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["auto", "parallel", "chunk"])
def test_the_layer_is_the_plain_formula(causal, form):
    q, k, v = normal(3, 2, 2, 70, 8, seed=1)
    expected = torch.zeros_like(v)
    for i in range(70):
        keys = i + 1 if causal else 70
        w = dpfp_features(q[:, :, i : i + 1], 2) @ dpfp_features(k[:, :, :keys], 2).mT
        expected[:, :, i : i + 1] = w @ v[:, :, :keys] / (w.sum(-1, keepdim=True) + EPS)
    mixed = layer(causal, nu=2, form=form).mix(q, k, v, torch.empty(0))
    torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=1e-10)


def test_token_by_token_is_the_same():
    mechanism, x = layer(), normal(2, 20, 16, seed=2)
    torch.testing.assert_close(one_by_one(mechanism, x), mechanism(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_a_query_that_shares_no_feature_with_any_key_gets_zero(form):
    """Opposite to every key, or a single coordinate: all features of a coordinate vector are 0."""
    k = normal(1, 1, 1, 8).expand(1, 2, 5, 8)
    v = torch.ones(1, 2, 5, 8, dtype=torch.float64)
    for q in (-k, torch.eye(8, dtype=torch.float64)[0].expand_as(k)):
        q = q.clone().requires_grad_()
        mixed = layer(form=form).mix(q, k, v, torch.empty(0))
        assert (mixed == 0).all()
        mixed.sum().backward()
        assert q.grad.isfinite().all()


@pytest.mark.parametrize("nu", [0, 8])
def test_impossible_nu_is_refused(nu):
    with pytest.raises(SetupError, match=rf"attention\.nu must be .* less than the 8 .* got {nu}"):
        layer(nu=nu)

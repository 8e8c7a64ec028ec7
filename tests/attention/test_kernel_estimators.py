"""Mixtures, medians, robust weights and kernel ridge regression, each against its formula in a plain loop."""

import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from tests.helpers.tf32 import Tf32
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, rows, sinc_weights, softmax_row, tokens


@BOTH
@pytest.mark.parametrize("second", ["projection", "shift"])
@pytest.mark.parametrize("assign", ["soft", "hard"])
def test_mixtures_of_two_keys(assign, second, causal):
    layer = layer_of("mgk", causal, assign=assign, second=second)
    for h, q, k, v, y in rows(layer, causal):
        kernels = [(-a * (q - key).square().sum(-1) / (2 * 8**0.5)).exp() for a, key in ((1, k[:, :8]), (3, k[:, 8:]))]
        if assign == "hard":
            weights = torch.maximum(*kernels)
        else:
            share = layer.mixture[h].softmax(0)
            weights = share[0] * kernels[0] + share[1] * kernels[1]
        torch.testing.assert_close(y, weights @ v / weights.sum(), **EXACT)


@BOTH
@pytest.mark.parametrize("second", ["projection", "shift"])
def test_features_of_two_keys_in_linear_time(second, causal):
    layer, eps = layer_of("mlk", causal, second=second), 1e-6
    for h, q, k, v, y in rows(layer, causal):
        fq, one, other = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k[:, :8], k[:, 8:]))
        share = layer.mixture[h].exp() / layer.mixture[h].exp().sum()
        weights = [
            sum(s * (fq @ f[j]) / (f[j].sum() + eps) for s, f in zip(share, (one, other), strict=True))
            for j in range(len(k))
        ]
        weights = torch.stack(weights) / (fq.sum() + eps)
        torch.testing.assert_close(y, weights @ v / (weights.sum() + eps), **EXACT)


def robust_weights(points, loss, a, iterations):
    """As the paper has it: one key after the other."""
    n = len(points)
    kernel = torch.tensor([[math.exp(-(p - o).square().sum().item() / 8**0.5) for o in points] for p in points])
    kernel, weights = kernel.double(), torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(iterations):
        new = []
        for j in range(n):
            r = (kernel[j, j] - 2 * kernel[j] @ weights + weights @ kernel @ weights).clamp_min(1e-24).sqrt().item()
            if loss == "huber":
                new.append(min(1, a / r))
            else:
                new.append(1 if r <= a else a / r if r <= 2 * a else max(0, a * (3 * a - r) / (a * r)))
        weights = torch.tensor(new, dtype=torch.float64)
        weights = weights / weights.sum() if weights.any() else torch.full((n,), 1 / n, dtype=torch.float64)
    return weights


@BOTH
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("loss", "a", "iterations"), [("huber", 0.2, 1), ("huber", 0.4, 3), ("hampel", 0.5, 2)])
def test_robust_weights_of_keys(loss, a, iterations, joint, causal):
    for _, q, k, v, y in rows(layer_of("rkde", causal, loss=loss, a=a, iterations=iterations, joint=joint), causal):
        k = k / k.norm(dim=1, keepdim=True)
        kernel = (-(q - k).square().sum(-1) / 8**0.5).exp()
        of_keys = robust_weights(k, loss, a, iterations)
        of_pairs = robust_weights(torch.cat([k, v], 1), loss, a, iterations) if joint else of_keys
        of_pairs = torch.where(of_keys > 0, of_pairs, 0)
        torch.testing.assert_close(y, (of_pairs * kernel) @ v / (of_keys @ kernel), rtol=0, atol=1e-6)


def test_no_key_is_an_outlier_beyond_the_largest_distance():
    """K = 1 at most: r <= sqrt(2)."""
    torch.testing.assert_close(
        layer_of("rkde", True, a=1.5)(tokens(9)), layer_of("kde", True)(tokens(9)), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("loss", "share"), [("huber", 0.8), ("hampel", 0.0)])
def test_an_outlier_among_the_keys_loses_weight(loss, share):
    layer = layer_of("rkde", loss=loss, a=0.3, iterations=3, joint=False)
    k = 0.1 * torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(0)).double() + torch.eye(8)[0].double()
    k[:, :, 5] = -3 * torch.eye(8)[0].double()
    weights = layer._weights(k / k.norm(dim=-1, keepdim=True), torch.ones(1, 1, 1, 12, dtype=torch.bool), -1 / 8**0.5)
    others = weights[..., [j for j in range(12) if j != 5]]
    assert (weights[..., 5:6] <= share * others).all()


@pytest.mark.parametrize(("joint", "size"), [(False, 300), (True, 5), (True, 300)])
def test_a_key_without_weight_hides_no_other(joint, size):
    """The nearest key of some long queries has the weight 0: the others count by their own kernels, not by its one."""
    q, k, v = (torch.randn(2, 2, 32, 16, generator=torch.Generator().manual_seed(s)) for s in range(3))
    layer = attention.build("rkde", Geometry(32, 2, 32, False), loss="hampel", joint=joint)
    q = (size * q).requires_grad_()
    y = layer.mix(q, k, v, v)
    y.sum().backward()
    assert q.grad.isfinite().all()
    if joint:
        assert y.abs().max() < 100
    else:
        average = layer.mix(q, k, torch.ones_like(v), v)
        torch.testing.assert_close(average, torch.ones_like(v))


def test_two_equal_keys_are_one():
    layer, plain = layer_of("mgk", second="shift", sharpness=1.0), layer_of("gaussian")
    plain.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.shift.zero_()
    torch.testing.assert_close(layer(tokens(9)), plain(tokens(9)), **EXACT)


@pytest.mark.parametrize("which", [0, 1])
def test_a_key_whose_share_is_0_does_not_count(which):
    layer, x = layer_of("mlk"), tokens(9)
    with torch.no_grad():
        layer.mixture[:, which] -= 100
        before = layer(x)
        layer.qkv.weight[16 * (1 + which) : 16 * (2 + which)].normal_()
        torch.testing.assert_close(layer(x), before, **EXACT)
        layer.qkv.weight[16 * (2 - which) : 16 * (3 - which)].normal_()
        assert (layer(x) - before).abs().max() > 0.01


@BOTH
@pytest.mark.parametrize("name", ["mom", "mom_fourier"])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_the_block_of_median_density(name, blocks, causal):
    layer = layer_of(name, causal, blocks=blocks)
    for _, q, k, v, y in rows(layer, causal, n=11):
        if name == "mom":
            weights = (-(q - k / k.norm(dim=1, keepdim=True)).square().sum(-1) / 8**0.5).exp()
        else:
            weights = sinc_weights(q, k, layer.log_kernel.radius)
        members = [slice(b, None, blocks) for b in range(min(blocks, len(k)))]
        ordered = sorted(members, key=lambda block: weights[block].mean().item())
        block = ordered[(len(ordered) - 1) // 2]
        torch.testing.assert_close(y, weights[block] @ v[block] / weights[block].sum(), rtol=0, atol=1e-9)


def test_one_block_is_the_whole_estimator():
    torch.testing.assert_close(
        layer_of("mom", True, blocks=1)(tokens(9)), layer_of("kde", True)(tokens(9)), rtol=0, atol=1e-9
    )


def test_a_block_with_an_outlier_is_not_used():
    layer = layer_of("mom_fourier", blocks=3)
    q, k = (
        torch.zeros(1, 2, 1, 8).double(),
        0.1 * torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0)).double(),
    )
    k[:, :, 4] = 0.0  # the only key at the query: the highest density is in block 1
    k[:, :, [1, 7]] = 0.0
    assert not layer.maps(q, k)[..., 1::3].any()


def test_kde_is_softmax_of_twice_the_products_with_unit_keys():
    for _, q, k, v, y in rows(layer_of("kde", True), True):
        torch.testing.assert_close(y, softmax_row(2 * q, k / k.norm(dim=1, keepdim=True), v), rtol=0, atol=1e-9)


@BOTH
@pytest.mark.parametrize("bandwidth", [None, 0.7])
def test_kernel_ridge_regression(bandwidth, causal):
    width = bandwidth or 8**0.5
    for _, q, k, v, y in rows(layer_of("kernel_ridge", causal, ridge=0.3, bandwidth=bandwidth), causal):
        kernel = (-torch.cdist(k, k).square() / (2 * width)).exp()
        towards = (-(q - k).square().sum(-1) / (2 * width)).exp()
        expected = towards @ torch.linalg.solve(kernel + 0.3 * torch.eye(len(k)).double(), v)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-8)


def test_the_ridge_survives_tensor_cores():
    """Keys of size 4 in clusters, whose Gram matrix would not be positive definite by TF32's products."""
    draw = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(8, 16, generator=draw)
    noise = 0.05 * torch.randn(2, 1, 1, 197, 16, generator=draw)
    q, k = centres[torch.randint(8, (2, 1, 1, 197), generator=draw)] + noise
    v = torch.randn(1, 1, 197, 16, generator=draw)
    layer = attention.build("kernel_ridge", Geometry(dim=16, heads=1, length=197, causal=True), ridge=0.01)
    exact = layer.mix(q.double(), k.double(), v.double(), v)
    with Tf32():
        found = layer.mix(q, k, v, v)
    assert (found - exact).norm() < 0.02 * exact.norm()


def test_the_ridge_survives_long_keys():
    """Eight keys each around 4 points, of size 1e4: float32's distances within a group would be off by more than it."""
    layer = layer_of("kernel_ridge", True).float()
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 2, 4, 8, generator=draw).repeat_interleave(8, dim=2)
    k = 1e4 * (centres + 1e-4 * torch.randn(2, 2, 32, 8, generator=draw))
    v = torch.randn(2, 2, 32, 8, generator=draw)
    exact = layer.mix(k.double(), k.double(), v.double(), v)
    torch.testing.assert_close(layer.mix(k, k, v, v).double(), exact, rtol=0, atol=1e-4)


def test_limits_of_the_ridge():
    q, k, v = (torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1, 2))
    torch.testing.assert_close(layer_of("kernel_ridge", ridge=1e-3).mix(k, k, v, v), v, rtol=0.1, atol=0.1)
    kernel = (-torch.cdist(q, k).square() / (2 * 8**0.5)).exp()
    torch.testing.assert_close(1e6 * layer_of("kernel_ridge", ridge=1e6).mix(q, k, v, v), kernel @ v, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("fourier_sink", {"eps": 0.0}, "attention.eps=0.0: must be more than 0"),
        ("fourier_sink", {"power": 3}, "attention.power must be an even integer"),
        ("relu_attention", {"power": 0}, "attention.power=0: must be at least 1"),
        ("epanechnikov", {"power": 0}, "attention.power=0: must be at least 1"),
        ("local_linear", {"ridge": 0.0}, "attention.ridge=0.0: must be more than 0"),
        ("mgk", {"sharpness": -1.0}, "attention.sharpness=-1.0: must be more than 0"),
        ("fourier_disc", {"eps": -1.0}, "attention.eps=-1.0: must be at least 0"),
        ("kernel_ridge", {"ridge": 0.0}, "attention.ridge=0.0: must be at least 0.001"),
        ("rkde", {"iterations": 0}, "attention.iterations=0: must be at least 1"),
        ("mom", {"blocks": 0}, "attention.blocks=0: must be at least 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(name, knobs, message):
    with pytest.raises(SetupError, match=message):
        layer_of(name, **knobs)

"""The reference against facts that do not come from it: plain loops, limits, symmetries."""

import math

import numpy as np
import pytest
import torch

from fourierformer.kernels.sinc.reference import SERIES, log_sinc_slope, sinc_attention_reference
from tests.helpers.sinc_cases import error, inputs, run


def reference(q, k, v, radius, power=4, eps=0.0, causal=False):
    return sinc_attention_reference(q, k, v, radius, power=power, eps=eps, causal=causal)


def by_loops(q, k, v, radius, power, eps, causal):
    """Definition 1 as a product of sinc^power, one number at a time (np.sinc(x) is sin(pi x) / (pi x))."""
    q, k, v = (t.numpy() for t in (q, k, v))
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    radius = np.broadcast_to(radius.numpy(), (heads, width))
    output = np.zeros((batch, heads, queries, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, queries):
        total = eps
        for j in range(keys):
            if causal and j > i + keys - queries:
                continue
            weight = 1.0
            for d in range(width):
                weight *= np.sinc(radius[h, d] * (q[b, h, i, d] - k[b, h, j, d]) / np.pi) ** power
            output[b, h, i] += weight * v[b, h, j]
            total += weight
        if total > 0:
            output[b, h, i] /= total
    return torch.from_numpy(output)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize(("power", "eps"), [(4, 0.0), (4, 1e-6), (2, 0.3), (6, 0.0)])
def test_equals_the_product_written_as_loops(queries, keys, power, eps, causal):
    radius = torch.tensor([[0.5, 2.0, -3.0], [1.0, 0.0, 9.0]])
    tensors, _ = inputs(queries=queries, keys=keys, width=3, value_width=2, radius=radius)
    options = {"power": power, "eps": eps, "causal": causal}
    assert error(reference(*tensors, **options), by_loops(*tensors, **options)) < 1e-13


def test_gradients_are_those_of_finite_differences():
    (q, k, v, radius), _ = inputs(queries=4, keys=5, width=3, radius=[[1.5, -0.7, 2.0]])
    leaves = [t.requires_grad_() for t in (q, k, v, radius)]
    assert torch.autograd.gradcheck(lambda *a: reference(*a, eps=1e-3, causal=True), leaves)


def test_slope_of_log_sinc():
    # g(z) = -z/3 - z^3/45 - 2 z^5/945 - ... near 0; cot z - 1/z elsewhere: at pi/2 it is -2/pi.
    z = torch.tensor([0.0, 1e-12, 1e-3, math.pi / 2], dtype=torch.float64)
    expected = [0.0, -1e-12 / 3, -1e-3 / 3 - 1e-9 / 45 - 2e-15 / 945, -2 / math.pi]
    assert log_sinc_slope(z).tolist() == pytest.approx(expected, rel=1e-14, abs=0)
    assert SERIES[:3] == pytest.approx([1 / 6, 1 / 180, 1 / 2835], rel=1e-14)
    around = torch.tensor([0.5 - 1e-13, 0.5 + 1e-13], dtype=torch.float64)  # where series and closed form meet
    assert log_sinc_slope(around)[0].item() == pytest.approx(log_sinc_slope(around)[1].item(), rel=1e-12)


def test_radius_zero_averages_the_keys():
    (q, k, v, _), _ = inputs()
    for radius in (0.0, 1e-9):
        output = reference(q, k, v, torch.tensor(radius, dtype=torch.float64))
        assert error(output, v.mean(2, keepdim=True).expand_as(output)) < 1e-12


def test_small_radius_is_a_gaussian_kernel():
    # sinc(z)^4 = exp(-2 z^2 / 3 + O(z^4)): a Gaussian of variance 3 / (4 R^2) per coordinate.
    (q, k, v, _), _ = inputs(width=8, scale=1.0)
    errors = []
    for radius in (0.2, 0.1):
        variance = 3 / (4 * radius**2)
        gaussian = torch.softmax(-torch.cdist(q, k).square() / (2 * variance), -1) @ v
        errors.append(error(reference(q, k, v, torch.tensor(radius, dtype=torch.float64)), gaussian))
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.2)  # the next term is z^4 / 45: fourth order in the radius


def test_eps_shrinks_by_the_share_of_the_sum():
    tensors, _ = inputs(width=4, radius=1.0)
    ones = torch.ones_like(tensors[2])
    plain = reference(*tensors)
    for eps in (1e-6, 1.0, 1e12):
        # With all values 1 the output is total / (eps + total): what any other output is multiplied by.
        share = reference(tensors[0], tensors[1], ones, tensors[3], eps=eps)
        assert error(reference(*tensors, eps=eps), plain * share) < 1e-12
    assert reference(*tensors, eps=1e12).abs().max() < 1e-9


def test_sign_of_the_radius_and_common_shifts_do_not_matter():
    (q, k, v, radius), _ = inputs()
    plain = reference(q, k, v, radius)
    assert torch.equal(reference(q, k, v, -radius), plain)
    assert error(reference(q + 3.0, k + 3.0, v, radius), plain) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_a_radius_per_head_and_coordinate_is_as_many_scalars(causal):
    (q, k, v, _), _ = inputs(heads=3, width=4)
    radius = torch.tensor([[0.5], [1.0], [4.0]], dtype=torch.float64)
    together = reference(q, k, v, radius, causal=causal)
    for h in range(3):
        alone = reference(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], radius[h, 0], causal=causal)
        assert torch.equal(together[:, h : h + 1], alone)
    # One radius per coordinate is the same as scaling that coordinate.
    per_coordinate = torch.tensor([[0.5, 1.0, 2.0, 3.0]], dtype=torch.float64)
    one = torch.tensor(1.0, dtype=torch.float64)
    scaled = reference(q * per_coordinate, k * per_coordinate, v, one, causal=causal)
    assert error(reference(q, k, v, per_coordinate, causal=causal), scaled) < 1e-12


def test_half_precision_is_float32_and_cast_back():
    tensors, _ = inputs()
    half = [t.bfloat16() for t in tensors]
    assert torch.equal(reference(*half), reference(*(t.float() for t in half)).bfloat16())


def test_gradient_of_every_input_arrives():
    tensors, doutput = inputs()
    assert all(g.abs().sum() > 0 for g in run(reference, tensors, doutput))

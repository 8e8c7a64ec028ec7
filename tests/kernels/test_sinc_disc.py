"""The compiled kernel with discs: against the formula with scipy's Bessel functions, which are right to 1e-15."""

import math

import pytest
import torch
from scipy import special

from fourierformer.kernels.sinc import choose_backend, sinc_attention
from fourierformer.kernels.sinc.reference import differences
from tests.helpers.sinc_cases import NAMES, assert_float32_class, inputs, needs_compiled, run

pytestmark = needs_compiled


class Factor(torch.autograd.Function):
    """2 J1(x) / x, and its derivative -2 J2(x) / x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x == 0, 1, 2 * torch.as_tensor(special.j1(x.numpy())) / x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = -2 * torch.as_tensor(special.jv(2, x.numpy())) / torch.where(x == 0, 1, x)
        return grad * slope.to(x.dtype)


def formula(q, k, v, radius, *, power=4, eps=0.0, causal=False, keep=None):
    z = differences(q[:, :, :, None], k[:, :, None]) * radius.expand(q.shape[1], q.shape[3])[:, None, None]
    square = z.square().unflatten(-1, (-1, 2)).sum(-1)
    factors = Factor.apply(torch.where(square > 0, square, 1).sqrt())
    weights = torch.where(square > 0, factors, 1).pow(power).prod(-1)
    if causal:
        weights = weights.tril(k.shape[2] - q.shape[2])
    if keep is not None:
        weights = weights * keep[:, None, None]
    return weights @ v / (eps + weights.sum(-1, keepdim=True))


def disc(*tensors, **options):
    return sinc_attention(*tensors, disc=True, **options)


# (radius, scale of q and k, width): by the polynomials alone, by both forms, and mostly by the expansion at infinity
RANGES = [(1e-6, 1.0, 16), (0.5, 1.0, 16), (0.4, 0.5, 64), (2.3, 0.5, 10), (2.3, 1.0, 2), (4.0, 1.0, 8), (30.0, 1.0, 4)]


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("case", RANGES)
@pytest.mark.parametrize(("causal", "eps"), [(True, 1e-6), (False, 0.0)])
def test_output_and_gradients(case, causal, eps, power):
    radius, scale, width = case
    tensors, doutput = inputs(queries=35, width=width, value_width=5, scale=scale, radius=radius)
    options = {"power": power, "eps": eps, "causal": causal}
    for name, ours, exact in zip(
        NAMES, run(disc, tensors, doutput, **options), run(formula, tensors, doutput, **options), strict=True
    ):
        assert (ours - exact).norm() < 1e-9 * exact.norm() + 1e-12, name
    q, k, v, radius = tensors
    tensors = [q, k, v, radius.expand(2, width).contiguous()]
    truth = run(formula, tensors, doutput, **options)
    direct = run(formula, tensors, doutput, torch.float32, **options)
    assert_float32_class(run(disc, tensors, doutput, torch.float32, **options), direct, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_distance(dtype):
    """One query against keys at x from 0 to 60, the change of form at 2 pi and the zeros of J1 among them."""
    x = torch.cat([torch.linspace(0, 60, 4001), torch.as_tensor(special.jn_zeros(1, 18)), torch.tensor([2 * math.pi])])
    x, angle = x.double(), torch.arange(len(x)) * 0.1
    keys = torch.stack([x * angle.cos(), x * angle.sin()], -1)[None, None]
    tensors = [torch.zeros(1, 1, 1, 2), keys, torch.eye(len(x))[None, None], torch.ones(1, 2)]
    options = {"power": 2, "eps": 1.0}
    found = disc(*(t.to(dtype) for t in tensors), **options)[0, 0, 0].double()
    exact = formula(*(t.double() for t in tensors), **options)[0, 0, 0]
    close = 1e-14 if dtype == torch.float64 else 1e-8  # the largest is 3e-3
    torch.testing.assert_close(found, exact, rtol=0, atol=close)


@pytest.mark.parametrize("sizes", [(7, 19), (19, 7), (1, 33), (70, 300)])
def test_queries_and_keys_differ_in_number(sizes):
    queries, keys = sizes
    tensors, doutput = inputs(queries=queries, keys=keys, width=6, radius=1.5, scale=1.0)
    for causal in (False, queries <= keys):
        options = {"eps": 1e-3, "causal": causal}
        found, exact = (run(f, tensors, doutput, **options) for f in (disc, formula))
        for name, ours, theirs in zip(NAMES, found, exact, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10, msg=name)


def test_keys_that_are_left_out():
    tensors, doutput = inputs(batch=2, queries=9, width=4, radius=2.0, scale=1.0)
    keep = torch.tensor([[True] * 6 + [False] * 3, [False, True] * 4 + [True]])
    exact = run(formula, tensors, doutput, eps=1e-3, keep=keep)
    tensors[1] = tensors[1].masked_fill(~keep[:, None, :, None], math.nan)
    for name, ours, theirs in zip(NAMES, run(disc, tensors, doutput, eps=1e-3, keep=keep), exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("shape", [(), (2, 1), (1, 4), (2, 4)])
def test_gradcheck(shape):
    radius = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)[: torch.Size(shape).numel()].reshape(shape)
    tensors, _ = inputs(queries=4, keys=5, width=4, value_width=2, radius=radius, scale=2.0)
    leaves = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *a: disc(*a, eps=1e-2), leaves, fast_mode=True)


def test_extreme_inputs_give_finite_numbers():
    for size in (1e-30, 1e10, 1e30, 1e37):
        tensors, doutput = inputs(queries=5, width=4, radius=2.0, scale=size)
        for result in run(disc, tensors, doutput, torch.float32, eps=1e-6):
            assert result.isfinite().all(), size


def test_torch_accepts_the_operators():
    (q, k, v, _), doutput = inputs(queries=5, width=4)
    radius, options = torch.full((1, 2, 4), 1.5, dtype=torch.float64), (4, 1e-6, True, True)
    operators = torch.ops.fourierformer
    leaves = [t.clone().requires_grad_() for t in (q, k, v, radius)]
    torch.library.opcheck(operators.sinc_attention_cpu, (*leaves, None, *options))
    saved = (q, k, v, radius, None, *operators.sinc_attention_cpu(q, k, v, radius, None, *options))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operators.sinc_attention_cpu_backward, (doutput, *saved, *options), test_utils=checks)


def test_what_has_no_discs_is_refused():
    q, k, v = torch.zeros(3, 1, 1, 2, 4)
    assert choose_backend(q, disc=True)[0] == "compiled"
    with pytest.raises(ValueError, match=r"'compiled': backend='portable' has none\. attention=fourier_disc runs"):
        disc(q, k, v, torch.tensor(1.0), backend="portable")
    with pytest.raises(ValueError, match="it has neither attn_mask nor dropout"):
        disc(q, k, v, torch.tensor(1.0), dropout=0.5)
    with pytest.raises(ValueError, match="pairs of coordinates, and 3 is an odd number"):
        disc(q[..., :3], k[..., :3], v, torch.tensor(1.0))

"""Inputs and comparisons shared by the kernel tests."""

import torch

NAMES = ("output", "dq", "dk", "dv", "dradius")


def inputs(batch=1, heads=2, queries=33, keys=None, width=16, value_width=None, radius=2.0, scale=0.5, seed=0):
    """q, k, v, radius and an output gradient, float64. `radius` is a number or a tensor of any accepted shape."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tokens, last):
        return torch.randn(batch, heads, tokens, last, generator=generator, dtype=torch.float64)

    keys, value_width = keys or queries, value_width or width
    radius = torch.as_tensor(radius, dtype=torch.float64)
    tensors = [scale * normal(queries, width), scale * normal(keys, width), normal(keys, value_width), radius]
    return tensors, normal(queries, value_width)


def run(function, tensors, doutput, dtype=None, **options):
    """Output and the four gradients of `function`, computed in `dtype`."""
    leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]
    output = function(*leaves, **options)
    output.backward(doutput.to(output.dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def error(found, truth):
    """Relative error in the Euclidean norm."""
    return ((found.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()


def assert_float32_class(found, direct, truth):
    """The accuracy rule: at most twice the error of the printed formula in float32, or 1e-4, whichever is larger."""
    for name, ours, theirs, exact in zip(NAMES, found, direct, truth, strict=True):
        assert ours.isfinite().all(), name
        assert error(ours, exact) <= max(1e-4, 2 * error(theirs, exact)), name

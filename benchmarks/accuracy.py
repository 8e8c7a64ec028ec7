"""Whether a kernel is right: its output and gradients beside the printed formula in float64, before it gets a time."""

import contextlib
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

PARITY_TOKENS, PARITY_NUMBERS = 512, 2**25  # of the slice; N x N x D numbers in float64, several times


@dataclasses.dataclass(frozen=True)
class Contestant:
    function: Callable  # f(q, k, v, radius)
    dtype: torch.dtype  # of q, k, v and the output
    counts: str | None = None  # "half" or "precise": which INSTRUCTIONS_PER_PAIR it has
    checked: bool = True

    @property
    def half(self) -> bool:
        """Which accuracy rule it has to meet."""
        return self.counts == "half" or self.dtype != torch.float32

    @contextlib.contextmanager
    def precision(self):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.counts == "half" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def rounded(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    *numbers, radius = tensors
    return [*(t.to(dtype).float() for t in numbers), radius]


def as_call(tensors: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """([q, k, v, radius], doutput). The radius is a parameter: it stays float32 beside narrower inputs."""
    *numbers, doutput = (t.to(dtype) for t in tensors[:4])
    radius = tensors[4].to(torch.promote_types(dtype, torch.float32))
    return [t.detach().requires_grad_() for t in (*numbers, radius)], doutput


def gradients(function: Callable, leaves: list[Tensor], doutput: Tensor) -> list[Tensor | None]:
    output = function(*leaves)
    used = torch.autograd.grad(output, leaves, doutput, allow_unused=True)  # softmax has no radius
    return [output.detach(), *used]


def errors(results: list[Tensor | None], truth: list[Tensor]) -> list[float]:
    """Relative, in the Euclidean norm; infinite where a result is missing or not finite."""
    return [
        ((r.double() - t).norm() / t.norm()).item() if r is not None and r.isfinite().all() else float("inf")
        for r, t in zip(results, truth, strict=True)
    ]


def parity_slice(tensors: list[Tensor]) -> list[Tensor]:
    """The first sequence, its last tokens, and as many heads as the float64 reference can hold."""
    *numbers, radius = tensors
    tokens, width = min(numbers[0].shape[2], PARITY_TOKENS), numbers[0].shape[3]
    heads = max(1, PARITY_NUMBERS // (tokens * tokens * width))
    return [*(t[:1, :heads, -tokens:].contiguous() for t in numbers), radius[:heads]]


def worst_excess(contestant: Contestant, tensors: list[Tensor], direct: Callable) -> float:
    """Error over what the accuracy rule allows; above 1 is wrong.

    Allowed: twice the error of the reference in float32, or 1e-4; in half precision also what rounding q, k, v and
    doutput to bfloat16 costs the reference.
    """

    def exact(numbers: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return gradients(direct, *as_call(numbers, dtype))

    given = rounded(tensors, contestant.dtype)
    truth = exact(given)
    allowed = [max(1e-4, 2 * e) for e in errors(exact(given, torch.float32), truth)]
    if contestant.half:
        cost = errors(exact(rounded(tensors, torch.bfloat16)), exact(tensors))
        allowed = [max(a, c) for a, c in zip(allowed, cost, strict=True)]
    with contestant.precision():
        ours = gradients(contestant.function, *as_call(given, contestant.dtype))
    return max(e / a for e, a in zip(errors(ours, truth), allowed, strict=True))

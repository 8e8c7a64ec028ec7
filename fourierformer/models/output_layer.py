"""Linear layer and cross-entropy in one, for a CPU: by groups of rows, so that never all logits are in memory.

A step of 512 tokens over 8,192 words has 512 * 8,192 * 4 bytes = 16 MiB of logits, and plain autograd stores three such
matrices: logits, log-probabilities, and the gradient of the logits. It reads and writes them several times, and
computes the exponentials twice.

The gradient of a SUM of losses needs only the logits: softmax minus one-hot, times the upstream gradient, a number. So
`total_nll` computes the gradients in its forward pass, while the logits of its rows are still in the caches.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.kernels.first_derivatives import differentiable_once

LOGITS = 2**20  # computed at a time: 4 MiB in float32
LEAST_ROWS = 64  # computed at a time: fewer rows would read the weights of a very large vocabulary too often


def nll(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(hidden weight^T + bias)[target] per row: (n, dim), (V, dim), (V,), (n,) -> (n,), >= float32."""
    if hidden.device.type != "cpu":
        return _plain_nll(hidden, weight, bias, targets)
    return torch.cat([_plain_nll(hidden[part], weight, bias, targets[part]) for part in _parts(hidden, weight)])


def total_nll(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The sum of `nll`; on a CPU and with gradients it takes less time and memory."""
    if hidden.device.type == "cpu" and torch.is_grad_enabled():
        return _TotalNll.apply(hidden, weight, bias, targets)
    return nll(hidden, weight, bias, targets).sum()


def _plain_nll(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(at_least_float32(F.linear(hidden, weight, bias)), targets, reduction="none")


class _TotalNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        gradients = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        w, b = _as_autocast(weight), _as_autocast(bias)
        with torch.autocast("cpu", enabled=False):
            for part in _parts(hidden, weight):
                h = hidden[part].to(w.dtype)
                losses, error = _losses_and_error(torch.addmm(b, h, w.t()), targets[part, None])
                total += losses.sum()
                _add_gradients(gradients, part, error, h, w)
        ctx.save_for_backward(*gradients, hidden, weight, bias)
        return total

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        *gradients, hidden, weight, bias = ctx.saved_tensors
        with torch.no_grad():
            gradients = [gradient * upstream.to(gradient.dtype) for gradient in gradients]
        return *differentiable_once(gradients, upstream, hidden, weight, bias), None


def _losses_and_error(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row, and its gradient with respect to the logits: softmax minus one-hot."""
    logits = at_least_float32(logits)
    error = logits.softmax(1)
    # log sum exp, without further exponentials: the largest probability is exp(largest logit) / sum exp. (The
    # probability of the target may be 0 in float32.)
    log_sum = logits.amax(1, keepdim=True) - error.amax(1, keepdim=True).log()
    losses = log_sum - logits.gather(1, targets)
    error.scatter_add_(1, targets, -torch.ones_like(losses))
    return losses, error


def _add_gradients(gradients: tuple[Tensor, Tensor, Tensor], part: slice, error: Tensor, h: Tensor, w: Tensor) -> None:
    of_hidden, of_weight, of_bias = gradients
    of_bias += error.sum(0)
    error = error.to(w.dtype)
    of_hidden[part] = error @ w
    if of_weight.dtype == w.dtype:
        of_weight.addmm_(error.t(), h)
    else:  # autocast: products in half precision, sums in float32
        of_weight += error.t() @ h


def _parts(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of rows that are computed together."""
    rows = max(LEAST_ROWS, LOGITS // len(weight))
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def _as_autocast(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that autocast takes for operands of a product."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

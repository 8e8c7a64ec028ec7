"""Means over a whole evaluation, for the `diagnostics` of a layer."""

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fourierformer.attention.base import to_float32


class EvaluationMean(nn.Module):
    """The mean of all values added since the model was last switched from training to evaluation.

    The last batch alone may be a single sequence. Adding never makes the host wait for the device; reading does.
    """

    totals: Tensor  # sum, count

    def __init__(self):
        super().__init__()
        self.counts = True  # see not_counted
        self.register_buffer("totals", torch.zeros(2), persistent=False)

    @torch.no_grad()
    def add(self, values: Tensor) -> None:
        # In torch.vmap nothing can be counted. torch 2.15 has no public question for it that can be compiled.
        # Where a later torch lacks this name, tests/attention/test_evaluation_mean.py fails.
        if not self.counts or torch._C._functorch.maybe_current_level() is not None:
            return
        values = values.to(self.totals.dtype)
        self.totals.add_(torch.stack([values.sum(), values.new_full((), values.numel())]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EvaluationMean":
        """The sums stay in float32 in a model in half precision, which stops counting at 256 or 65504."""
        super()._apply(fn, recurse)
        (self.totals,) = to_float32(self.totals)
        return self

    def train(self, mode: bool = True) -> "EvaluationMean":
        """Reset where evaluation begins. `train` and `eval` of the whole model call it."""
        if self.training and not mode:
            self.totals.zero_()
        return super().train(mode)

    def value(self) -> float:
        """The mean; nan where nothing was added."""
        total, count = self.totals.tolist()
        return total / count if count else math.nan


@contextlib.contextmanager
def not_counted(model: nn.Module) -> Iterator[None]:
    """A context in which no layer adds to its means: for passes over other data than the evaluated, such as the model's
    own answers, token by token."""
    means = [module for module in model.modules() if isinstance(module, EvaluationMean)]
    for mean in means:
        mean.counts = False
    try:
        yield
    finally:
        for mean in means:
            mean.counts = True

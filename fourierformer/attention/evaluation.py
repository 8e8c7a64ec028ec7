"""A number that a layer measures of itself over a whole evaluation, for its `diagnostics`."""

import math

import torch
from torch import Tensor, nn


class EvaluationMean(nn.Module):
    """The mean of all that was added since the model was last switched from training to evaluation.

    The last batch alone would be a poor sample: it may be a single sequence. Adding never makes the host wait for the
    device; reading does.
    """

    totals: Tensor  # the sum and the count

    def __init__(self):
        super().__init__()
        self.register_buffer("totals", torch.zeros(2), persistent=False)

    @torch.no_grad()
    def add(self, values: Tensor) -> None:
        sums = torch.stack([values.sum(), values.new_full((), values.numel())])
        self.totals.add_(sums.to(self.totals.dtype))

    def train(self, mode: bool = True) -> "EvaluationMean":
        """Begins anew where evaluation begins. `train` and `eval` of the whole model get here."""
        if self.training and not mode:
            self.totals.zero_()
        return super().train(mode)

    def value(self) -> float:
        """nan where nothing was added."""
        total, count = self.totals.tolist()
        return total / count if count else math.nan

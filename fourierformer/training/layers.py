"""Training steps of attention layers that draw random numbers, add to the loss, or learn from statistics.

All of it is a function of (seed, step, row of the global batch): noise depends on the row's number, auxiliary losses
are averaged over rows like the loss, and statistics are summed over micro-batches and processes before they change a
layer's state. A resumed run hence equals an uninterrupted one, and another division of the batch changes rounding only.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fourierformer.attention.base import layers_of
from fourierformer.errors import SetupError
from fourierformer.training.objective import Objective, RowWise
from fourierformer.transfer import to_device


class LayerSteps:
    """Call the attention layers of a model in a training step: `begin`, `loss` per micro-batch, `end`."""

    def __init__(self, model: nn.Module, objective: Objective, device: torch.device):
        self.objective, self.device, self.layers = objective, device, layers_of(model)
        self.drawing = [layer for layer in self.layers if layer.draws]
        self.adding = [layer for layer in self.layers if layer.adds_loss]
        self.warned: set[str] = set()
        needy = [*self.drawing, *self.adding]
        if needy and not isinstance(objective, RowWise):
            raise SetupError(
                f"{type(needy[0]).__name__} attention needs the rows of a batch and their losses, which "
                f"{type(objective).__name__} lacks: write its methods rows and row_losses (see "
                "fourierformer.training.objective.RowWise), or choose another attention"
            )

    def diagnostics(self) -> tuple[dict[str, float], list[str]]:
        """The diagnostics of every layer, {"radius/00": 0.43, ...}, and warnings that were not returned before."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            numbers = {
                f"{name}/{i:02d}": value
                for i, layer in enumerate(self.layers)
                for name, value in layer.diagnostics().items()
            }
        texts = [text for text in dict.fromkeys(str(warning.message) for warning in caught) if text not in self.warned]
        self.warned.update(texts)
        return numbers, texts

    def begin(self, step: int) -> None:
        for layer in self.layers:
            layer.begin_step(step)

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, Tensor]:
        """This batch's part of the step's loss, to log, and its sum with the auxiliary losses, to differentiate."""
        if not (self.drawing or self.adding):
            part = self.objective.loss(model, batch)
            return part, part
        assert isinstance(self.objective, RowWise)  # checked in __init__
        numbers, share = self.objective.rows(batch)
        if self.drawing:
            (numbers,) = to_device(self.device, numbers)
            for layer in self.drawing:
                layer.begin_rows(numbers)
        losses = self.objective.row_losses(model, batch)
        added = [layer.auxiliary_loss(losses.detach()) for layer in self.adding]
        part = losses.mean() * share
        return part, part + sum(x.mean() for x in added) * share

    def end(self, sum_over_processes: Callable[[Tensor], Tensor], good: Tensor) -> None:
        for layer in self.layers:
            layer.end_step(sum_over_processes, good)

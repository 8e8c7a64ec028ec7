"""In-context regression: squared error at the queries, and its ratio to the smallest error that is possible."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.data.regression.corpus import RegressionCorpus
from fourierformer.data.regression.sequences import Points, draw
from fourierformer.models.regression import RegressionModel
from fourierformer.tasks.drawn_objective import DrawnBatch, DrawnObjective
from fourierformer.training.objective import OnProgress, Poll, evaluating


class RegressionObjective(DrawnObjective):
    unit, metric, primary, higher_is_better = "points", "mse", "valid_mse", False
    protocols = ("queries",)
    corpus: RegressionCorpus

    def __init__(self, corpus: RegressionCorpus, *, global_batch_size: int, **options):
        super().__init__(corpus, global_batch_size=global_batch_size, **options)
        self.samples_per_step = global_batch_size * self.data.queries

    def draw(self, seed: int) -> Points:
        return draw(self.data, self.global_batch_size, seed)

    def row_losses(self, model: RegressionModel, batch: DrawnBatch) -> Tensor:
        points: Points = batch.sequences
        return F.mse_loss(model(points), points.noisy, reduction="none").mean(1)

    def evaluate(self, model: RegressionModel, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        error = self.measure(model, "valid", "queries", poll, on_progress)["mse"]
        return {"valid_loss": error, self.primary: error}

    @torch.inference_mode()
    def measure(
        self, model: Any, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """The mean squared error to the function without noise."""
        tokens = self.data.context + self.data.queries
        points = self.limited(self.corpus.splits[split], tokens)
        # stays on the device: one host sync at the end
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with evaluating(model):
            for batch in self.evaluation_batches(points, tokens, split, poll, on_progress):
                total += (model(batch) - batch.exact).double().square().sum()
        error = self.processes.sum(total).item() / points.exact.numel()
        scored = {"context": self.data.context, "queries": self.data.queries, "sequences": len(points)}
        return {"nll": error, "mse": error, "ratio": error / self.corpus.optimum(split, len(points)), **scored}

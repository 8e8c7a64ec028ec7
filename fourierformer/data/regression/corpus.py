"""The sequences by which models are compared: valid and test, with the smallest error that is possible on them."""

from functools import partial

from fourierformer.data.regression.baselines import error, mean_of_context, posterior_mean
from fourierformer.data.regression.sequences import Points, draw
from fourierformer.data.regression.spec import RegressionData
from fourierformer.seeds import seed_of


class RegressionCorpus:
    """The sequences of valid and test, the same for every run of this data."""

    def __init__(self, data: RegressionData):
        self.data, self.name = data, data.name
        self.splits = {split: self._draw(split) for split in ("valid", "test")}
        self.optima = {split: self._optimum(points) for split, points in self.splits.items()}
        mean = error(self.splits["test"].double(), mean_of_context)
        self.notes = [f"error on test: {self.optima['test']:.4f} of the GP posterior, {mean:.4f} of the context's mean"]

    def _draw(self, split: str) -> Points:
        return draw(self.data, self.data.held_out, seed_of("regression", self.data.seed, split))

    def _optimum(self, points: Points) -> float:
        return error(points.double(), partial(posterior_mean, self.data))

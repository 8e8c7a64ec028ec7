"""The sequences by which models are compared: valid and test, with the smallest error that is possible on them."""

from functools import cached_property

from torch import Tensor

from fourierformer.data.regression.baselines import error, mean_of_context, posterior_mean
from fourierformer.data.regression.sequences import Points, draw
from fourierformer.data.regression.spec import RegressionData
from fourierformer.seeds import seed_of


class RegressionCorpus:
    """The sequences of valid and test, the same for every run of this data. Drawn at first use: a trained model needs
    none."""

    def __init__(self, data: RegressionData):
        self.data, self.name = data, data.name

    @cached_property
    def splits(self) -> dict[str, Points]:
        seeds = {split: seed_of("regression", self.data.seed, split) for split in ("valid", "test")}
        return {split: draw(self.data, self.data.held_out, seed) for split, seed in seeds.items()}

    def optimum(self, split: str, count: int | None = None) -> float:
        """The error of the Gaussian process posterior on the first `count` sequences of a split."""
        return self._squares[split][:count].mean().item()

    @cached_property
    def _squares(self) -> dict[str, Tensor]:
        """Squared errors of the Gaussian process posterior by split, (sequences, Q) float64."""
        exact = {split: points.double() for split, points in self.splits.items()}
        return {split: (posterior_mean(self.data, points) - points.exact).square() for split, points in exact.items()}

    @cached_property
    def notes(self) -> list[str]:
        mean = error(self.splits["test"].double(), mean_of_context)
        return [f"error on test: {self.optimum('test'):.4f} of the GP posterior, {mean:.4f} of the context's mean"]

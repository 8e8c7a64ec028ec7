"""The config of in-context regression, `configs/data/regression*.yaml`: every key there is a field here."""

from dataclasses import dataclass
from typing import Literal

from fourierformer.errors import LARGEST_COUNT, SetupError, check_name, check_range


@dataclass(frozen=True, kw_only=True)
class RegressionData:
    """A sequence holds `context` pairs (x, y) and `queries` points x, with y = f(x) + noise.

    f is drawn per sequence from a Gaussian process with covariance exp(-|x - x'|^2 / (2 length_scale^2)).
    Features x are normal with a covariance of trace `dimension` and eigenvalues 1 + (dimension - 1) rho, once, and
    1 - rho. Its eigenvectors are the diagonal (1, ..., 1) and directions normal to it ("equicorrelated": any two
    features have correlation rho), the axes ("axes"), or random directions ("rotated").
    """

    name: str
    dimension: int
    context: int
    queries: int
    covariance: Literal["equicorrelated", "axes", "rotated"]
    rho: float
    smooth_in: Literal["features", "whitened"]  # whitened: distances of f's covariance are Mahalanobis distances
    length_scale: float
    noise: float  # standard deviation
    seed: int  # of valid and test, which are the same in all runs, and of the rotation
    held_out: int  # sequences of valid, and as many of test

    def __post_init__(self):
        check_name("data.name", self.name)
        for key in ("dimension", "context", "queries", "held_out"):
            check_range(f"data.{key}", getattr(self, key), 1, LARGEST_COUNT + 1)
        check_range("data.length_scale", self.length_scale, 0, above_low=True)
        check_range("data.noise", self.noise, 0, above_low=True)
        check_range("data.seed", self.seed, 0, 2**63)
        if not -1 / max(1, self.dimension - 1) < self.rho < 1:
            raise SetupError(
                f"data.rho={self.rho:g}: correlations of data.dimension={self.dimension} features lie between "
                f"{-1 / max(1, self.dimension - 1):.3g} and 1: data.rho=0.9"
            )

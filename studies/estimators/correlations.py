"""What a correlation between features costs each kernel: exact MISE for normal densities, each at its best radius.

The isotropic Gaussian is what the paper replaces by a product of sinc^4. The Gaussian with full covariance takes
h^2 Sigma as its bandwidth matrix, Sigma the true covariance: what any method that learns correlations could hope for.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from studies.estimators.estimators import Kernel, fourier_kernel, gaussian_kernel
from studies.estimators.radius import determinant, exact_mise, least_error_radius

GAUSSIAN, FULL_COVARIANCE = "gaussian", "gaussian, full covariance"


@dataclass(frozen=True)
class BestError:
    """One kernel at its best radius."""

    dim: int
    correlation: float
    samples: int
    kernel: str
    radius: float  # R; 1 / h for the Gaussians
    mise: float
    ratio: float  # to the isotropic Gaussian's MISE


def best_errors(dim: int, correlation: float, samples: int, powers: Iterable[int]) -> Iterator[BestError]:
    """The isotropic Gaussian first, then sinc^power for each power, the Gaussian with full covariance last."""
    gaussian = gaussian_kernel()
    radius, base = least_mise(gaussian, samples, dim, correlation)
    yield BestError(dim, correlation, samples, GAUSSIAN, radius, base, 1.0)
    for power in powers:
        radius, mise = least_mise(fourier_kernel(power), samples, dim, correlation)
        yield BestError(dim, correlation, samples, f"sinc^{power}", radius, mise, mise / base)
    radius, mise = least_full_covariance_mise(gaussian, samples, dim, correlation)
    yield BestError(dim, correlation, samples, FULL_COVARIANCE, radius, mise, mise / base)


def least_mise(kernel: Kernel, samples: int, dim: int, correlation: float) -> tuple[float, float]:
    """The best radius and its MISE."""
    radius = least_error_radius(lambda radius: exact_mise(kernel, radius, samples, dim, correlation))
    return radius, exact_mise(kernel, radius, samples, dim, correlation)


def least_full_covariance_mise(kernel: Kernel, samples: int, dim: int, correlation: float) -> tuple[float, float]:
    """The same for a kernel of Sigma^(-1/2) (x - y), by y = Sigma^(1/2) z: the squared difference of two densities is
    divided by det Sigma and the volume multiplied by its square root."""
    radius, mise = least_mise(kernel, samples, dim, correlation=0.0)
    return radius, mise / math.sqrt(determinant(dim, correlation))

"""Draws sequences of in-context regression: normal features, functions of a Gaussian process, noisy values."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fourierformer.data.drawn import DrawnRows
from fourierformer.data.regression.spec import RegressionData
from fourierformer.seeds import seed_of

JITTER = 1e-6  # added to the variance of f, so that its covariance matrix is positive definite in float64


@dataclass(frozen=True)
class Points(DrawnRows):
    """A batch: pairs of the context, points that are asked, and the function there, with noise and without."""

    features: Tensor  # (B, N, d)
    values: Tensor  # (B, N)
    queries: Tensor  # (B, Q, d)
    noisy: Tensor  # (B, Q)
    exact: Tensor  # (B, Q)

    def double(self) -> "Points":
        return self.each(Tensor.double)


@cache
def covariance_root(data: RegressionData) -> Tensor:
    """The symmetric square root of the features' covariance, (d, d) float64."""
    d = data.dimension
    generator = torch.Generator().manual_seed(seed_of("rotation", data.seed, d))
    directions = {
        "axes": lambda: torch.eye(d, dtype=torch.float64),
        "rotated": lambda: torch.randn(d, d, generator=generator, dtype=torch.float64),
        # the first column is the diagonal; QR makes the others normal to it
        "equicorrelated": lambda: torch.eye(d, dtype=torch.float64).index_fill(1, torch.tensor([0]), 1.0),
    }[data.covariance]()
    basis = torch.linalg.qr(directions).Q
    variances = torch.full((d,), 1 - data.rho, dtype=torch.float64)
    variances[0] += d * data.rho
    return basis * variances.sqrt() @ basis.T


def prior(data: RegressionData, a: Tensor, b: Tensor) -> Tensor:
    """Covariance of f at points a (B, N, d) and b (B, M, d) in float64: (B, N, M)."""
    if data.smooth_in == "whitened":
        whitening = torch.linalg.inv(covariance_root(data))
        a, b = a @ whitening, b @ whitening
    return torch.exp(-torch.cdist(a, b).square() / (2 * data.length_scale**2))


def draw(data: RegressionData, count: int, seed: int) -> Points:
    """`count` sequences in float32, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, data.context + data.queries)
    x = torch.randn(*shape, data.dimension, generator=generator, dtype=torch.float64) @ covariance_root(data)
    covariance = prior(data, x, x)
    covariance.diagonal(dim1=1, dim2=2).add_(JITTER)
    f = torch.linalg.cholesky(covariance) @ torch.randn(*shape, 1, generator=generator, dtype=torch.float64)
    f = f[..., 0]
    y = f + data.noise * torch.randn(shape, generator=generator, dtype=torch.float64)
    n = data.context
    return Points(*(part.float() for part in (x[:, :n], y[:, :n], x[:, n:], y[:, n:], f[:, n:])))

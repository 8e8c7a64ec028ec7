"""Random feature maps: phi with E phi(x).phi(y) = K(x, y) over random frequencies omega ~ N(0, I).

x (..., N, D) and frequencies (..., m, D) -> (..., N, M). Scales, cancelled factors and floors under sums of weights
are in linear.py, performer.py and rfa.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import Geometry, to_float32
from fourierformer.attention.switches import SMALLEST_NORM
from fourierformer.seeds import seed_of


def orthogonal_gaussian(count: int, width: int, generator: torch.Generator) -> Tensor:
    """(count, width) rows, each N(0, I), orthogonal inside blocks of `width` rows; float64.

    Averages over orthogonal rows vary less than over independent ones (Yu et al. 2016, arXiv 1610.09072). Directions
    are uniform only if R's diagonal is made positive: the signs that LAPACK chooses give E omega != 0, a bias that no
    number of features removes (Mezzadri 2007, math-ph/0609050). Lengths are norms of independent normal vectors.
    """
    blocks = []
    for _ in range(-(-count // width)):
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        directions = (q * r.diagonal().sign()).mT
        lengths = torch.randn(width, width, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
        blocks.append(directions * lengths)
    return torch.cat(blocks)[:count]


def draw_frequencies(geometry: Geometry, count: int, name: str, *number: int) -> Tensor:
    """Orthogonal frequencies (H, count, D), different in every head; determined by seed, layer, name and number."""
    generator = torch.Generator().manual_seed(seed_of(name, geometry.seed, geometry.layer, *number))
    heads = [orthogonal_gaussian(count, geometry.head_dim, generator) for _ in range(geometry.heads)]
    return torch.stack(heads).float()


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1: positive, with a gradient everywhere (Katharopoulos et al. 2020, equation 7). Computed without
    exp(x) - 1 + 1, which is 0 in float32 below -17. x - relu(x) is min(x, 0), with gradient 1 at 0."""
    positive = x.relu()
    return (x - positive).exp() + positive


def relu_features(x: Tensor, frequencies: Tensor) -> Tensor:
    """sqrt(2/m) max(0, omega.x): K(x, y) = |x| |y| (sin t + (pi - t) cos t) / pi with t the angle between x and y, the
    arc-cosine kernel of order 1 (Cho and Saul 2009, equation 6)."""
    return math.sqrt(2 / frequencies.shape[-2]) * _project(x, frequencies).relu()


def positive_exponents(x: Tensor, frequencies: Tensor) -> Tensor:
    """log(sqrt(m) phi), phi = exp(omega.x - |x|^2/2) / sqrt(m): K(x, y) = exp(x.y) (Choromanski et al. 2021, lemma 1).

    omega.x - |x|^2/2 = |omega|^2/2 - |omega - x|^2/2 is at most |omega|^2/2, about D/2, for every x: exp does not
    overflow in float32 for D <= 64, without subtraction of a maximum over the sequence.
    """
    return _project(x, frequencies) - x.square().sum(-1, keepdim=True) / 2


def hyperbolic_exponents(x: Tensor, frequencies: Tensor) -> Tensor:
    """positive_exponents with -omega beside every omega: 2 m features of lower variance (lemma 1 there, cosh)."""
    return positive_exponents(x, torch.cat([frequencies, -frequencies], dim=-2))


def unit_norm(x: Tensor) -> Tensor:
    """x / |x| in float32 at least: |x|^2 of small or large half-precision numbers is 0 or infinite."""
    with torch.autocast(x.device.type, enabled=False):
        (x,) = to_float32(x)
        return F.normalize(x, dim=-1, eps=SMALLEST_NORM)


def trigonometric_features(x: Tensor, frequencies: Tensor) -> Tensor:
    """[sin omega.x, cos omega.x] / sqrt(m): K(x, y) = exp(-|x - y|^2 / 2) (Rahimi and Recht 2007). Signed."""
    angles = _project(x, frequencies)
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / math.sqrt(frequencies.shape[-2])


def _project(x: Tensor, frequencies: Tensor) -> Tensor:
    """omega.x in the dtype of x: a model in half precision stores rounded frequencies, but computes in float32."""
    return x @ frequencies.mT.to(x.dtype)

"""Fourier attention in time linear in the number of tokens: the paper's future work."""

import math
import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Geometry, Keep, to_float32
from fourierformer.attention.engines.log_kernel import SINC_TURNS
from fourierformer.attention.engines.recurrence import PARALLEL_UP_TO, Form
from fourierformer.attention.engines.spectral import CosineFeatures, Sampler, gauss_grid, sample_frequencies
from fourierformer.attention.mechanisms import polynomial
from fourierformer.attention.mechanisms.linear import FeatureAttention, FeaturePair, check_features
from fourierformer.attention.mechanisms.polynomial import MAX_FEATURE_ORDER, MAX_FEATURES, shorten, taylor_kernel
from fourierformer.attention.switches import FIRST_SHARPNESS, QKNormKind
from fourierformer.errors import SetupError, check_range
from fourierformer.marks import mark
from fourierformer.seeds import seed_of

# The least mean weight in the denominator; the kernel's maximum is 1. A smaller mean is mostly error: random features
# are noise below exp(-3) = 0.05, a Gauss rule that just resolves the kernel has an error of 0.001 to 0.01.
FLOOR = {"rff": 0.05, "gauss": 1e-3}
EPS = 1e-20  # a query whose keys all have smaller weights gets nearly 0 instead of 0 / 0
LARGEST_EXPONENT = 40.0  # of exp(-|k|^2 / 2): weights are at least exp(-40) = 4e-18, large compared with EPS
# Standard deviation of projection weights before training, in both models. Components of q and k then have a variance
# of dim 0.02^2 for inputs of unit size: 0.05 for dim 128.
INITIAL_WEIGHT = 0.02
LARGEST_TAU = 2.0
ADVICE = {
    "tau": "attention=fourier_linear: tau exceeds 2 in at least one head: the kernel is too sharp to be approximated. "
    "method=rff gives noise there, method=taylor another kernel than the Fourier kernel. attention.normalize=l2 keeps "
    "q and k from raising tau; attention=fourier is exact.",
    "resolution": "attention=fourier_linear: the Gauss rule is too coarse for the differences q - k of at least one "
    "head, so its weights may be negative. Raise attention.nodes, or keep the differences small with "
    "attention.normalize=l2.",
}


def radius_for(tau: float, power: int, width: int, variance: float) -> float:
    """The radius R at which tau = n R^2 s^2 D / 3, for components of q and k with variance s^2.

    tau is the mean of -log of the kernel, n R^2 |q - k|^2 / 6 to second order, over independent q and k with
    E |q|^2 = E |k|^2 = D s^2.
    """
    return math.sqrt(3 * tau / (power * width * variance))


def initial_variance(geometry: Geometry, norm: QKNormKind) -> float:
    """The variance s^2 of components of q and k at the initial weights, for inputs of unit size."""
    width = geometry.head_dim
    return {
        "none": geometry.dim * INITIAL_WEIGHT**2,
        "l2": 1 / width,
        "rms": 1.0,
        "cosine": FIRST_SHARPNESS / math.sqrt(width),
    }[norm]


@register("fourier_linear", "sinc⁴ products in linear time: Taylor, random or Gauss features of the kernel")
class FourierLinear(FeatureAttention):
    """w_ij = K(q_i, k_j) = prod_d sinc(R (q_id - k_jd))^n as a product of features, one learned R per head.

    taylor  log sinc(z) = -z^2/6 - z^4/180 - ..., so K is nearly exp(-|x - y|^2 / 2) with x = R sqrt(n/3) q and y alike
            of k; exp(-|x|^2 / 2) cancels and exp(x.y) is cut at an even `order`: weights > 0, C(D + order, order)
            features without randomness.
    rff     K = E cos(R omega.(q - k)), spectral.py: random frequencies, unbiased, with noise (features / 2)^-1/2.
    gauss   the same mean by Gauss rules with `nodes` per coordinate, for a kernel over few coordinates:
            K = mean over groups g of prod_{d in g} sinc(R (q_d - k_d))^n, groups of `head_kernel_dim` neighbours.

    Its accuracy depends on tau = n R^2 s^2 D / 3 (radius_for), -log of a usual weight: noise must be below exp(-tau),
    and the Taylor polynomial must approximate exp for logits of that size. tau <= 2 is usable; there sinc^4 attention
    equals Gaussian attention to 2 %, without influence of the zeros of sinc. At the paper's radius tau is 4 for D = 16
    and more for larger D: there it does not approximate exact attention, and a model has to be trained with it. Only
    `gauss` keeps the lobes of sinc, for another kernel, with nodes > n R max|q_d - k_d| / 2 + 2.

    R is initialised to tau = tau0 at the initial weights of both models. `diagnostics` reports for the sharpest head of
    the latest batch tau, the mean of n R^2 (|q|^2 + |k|^2) / 6, or for gauss the used share of the resolution.
    """

    cost = "N M C, M = C(D+2, 2) at order 2"
    source = "left as future work by Nguyen et al. 2022, arXiv 2206.00206"
    strain: Tensor

    def __init__(
        self, geometry: Geometry, *,
        method: Literal["taylor", "rff", "gauss"] = "taylor", power: int = 4, tau0: float = 1.0,
        normalize: Literal["none", "l2"] = "none", order: int = 2, features: int = 256, sampler: Sampler = "orth",
        smooth: float = 0.0, nodes: int = 12, head_kernel_dim: int = 2, form: Form = "auto",
    ):  # fmt: skip
        super().__init__(geometry, form)
        _check(power, tau0, smooth, method)
        self.method, self.power, self.normalize = method, power, normalize
        self.rotary_ok = True if method == "taylor" else SINC_TURNS  # its weights depend on q.k and |k| alone
        if normalize == "l2":
            self.qk_norm_ok = "it divides queries and keys by their norms"
        self.order, self.smooth, self.nodes = order, smooth, nodes
        width = head_kernel_dim if method == "gauss" else geometry.head_dim  # coordinates of one product
        if method == "taylor":
            self.feature_map, count = _taylor_map(geometry, order)
        elif method == "rff":
            self.feature_map, count = _random_map(geometry, power, features, sampler)
        else:
            self.feature_map, count = _gauss_map(geometry, power, nodes, width)
        self.features = count + (smooth > 0)
        variance = initial_variance(geometry, "l2" if normalize == "l2" else geometry.qk_norm)
        self.radius = nn.Parameter(torch.full((geometry.heads, 1), radius_for(tau0, power, width, variance)))
        mark(self, "radius", no_weight_decay=True)
        self.register_buffer("strain", torch.tensor(math.nan), persistent=False)  # see _measure_strain

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        causal = self.geometry.causal and not cross
        with torch.autocast(q.device.type, enabled=False):
            scaled = self._scaled(*to_float32(q, k))
            self._measure_strain(*scaled, keep, cross)
            if self._by_kernel(k.shape[-2]):
                return (self._taylor_maps(*scaled, causal, keep) @ v.to(scaled[0].dtype)).to(v.dtype)
        return super().mix(q, k, v, x, keep=keep, cross=cross)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        if self.method != "taylor":
            return super().maps(q, k)
        with torch.autocast(q.device.type, enabled=False):
            return self._taylor_maps(*self._scaled(*to_float32(q, k)), self.geometry.causal)

    def phi(self, q: Tensor, k: Tensor) -> FeaturePair:
        q, k = self._scaled(q, k)
        fq, fk = self.feature_map(q), self.feature_map(k)
        if self.method == "taylor":
            return FeaturePair(fq, fk, {"key_weight": _key_weight(k), "eps": EPS})
        if self.smooth:  # one more feature, a constant, whose product is smooth: K + smooth
            fq, fk = (F.pad(f, (0, 1), value=math.sqrt(self.smooth)) for f in (fq, fk))
        return FeaturePair(fq, fk, {"floor": FLOOR[self.method]})

    def diagnostics(self) -> dict[str, float]:
        numbers = {"radius": self.radius.detach().abs().mean().item()}
        strain, name = self.strain.item(), "resolution" if self.method == "gauss" else "tau"
        if not math.isnan(strain):  # nan before the first batch
            numbers[name] = strain
        if strain > (1.0 if name == "resolution" else LARGEST_TAU):
            warnings.warn(ADVICE[name], stacklevel=2)  # one text, so Python shows it once
        return numbers

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """R x; for taylor R sqrt(n/3) x, with which the kernel is exp(-|x - y|^2 / 2)."""
        radius = self.radius.to(q.dtype)  # in half precision its multiple would be rounded once more
        if self.method == "taylor":
            radius = radius * math.sqrt(self.power / 3)
        if self.normalize == "l2":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        q, k = q * radius[:, None], k * radius[:, None]
        return (shorten(q, self.order), shorten(k, self.order)) if self.method == "taylor" else (q, k)

    def _by_kernel(self, keys: int) -> bool:
        """Whether the Taylor polynomial of the products takes less work than its features: over few tokens."""
        if self.method != "taylor" or self.form == "chunk":
            return False
        return self.form == "parallel" or keys <= max(PARALLEL_UP_TO, self.features)

    def _taylor_maps(self, q: Tensor, k: Tensor, causal: bool, keep: Keep = None) -> Tensor:
        weights = taylor_kernel(q @ k.mT, self.order) * _key_weight(k)[..., None, :]
        if keep is not None:
            weights = weights.masked_fill(~keep[:, None, None], 0.0)
        weights = weights.tril(k.shape[-2] - q.shape[-2]) if causal else weights
        return weights / (weights.sum(-1, keepdim=True) + EPS)

    @torch.no_grad()
    def _measure_strain(self, q: Tensor, k: Tensor, keep: Keep, cross: bool) -> None:
        """Store tau or the used resolution for `diagnostics`, without padding; q and k are scaled."""
        if not len(q):
            return
        of_queries = None if keep is None or cross else keep[:, -q.shape[2] :]
        if self.method == "gauss":
            (q_low, q_high), (k_low, k_high) = _range(q, of_queries), _range(k, keep)
            reach = torch.maximum(q_high - k_low, k_high - q_low).amax()
            self.strain.copy_((self.power * reach / 2 + 2) / self.nodes)
            return
        squares = _mean_square(q, of_queries) + _mean_square(k, keep)
        self.strain.copy_(squares.amax() * (1 / 2 if self.method == "taylor" else self.power / 6))


def _range(x: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
    """Minimum and maximum of each coordinate over tokens to keep, (B, H, K) each."""
    if keep is None:
        return x.amin(2), x.amax(2)
    left_out = ~keep[:, None, :, None]
    return x.masked_fill(left_out, math.inf).amin(2), x.masked_fill(left_out, -math.inf).amax(2)


def _mean_square(x: Tensor, keep: Keep) -> Tensor:
    """The mean of |x|^2 per head over tokens to keep."""
    squares = x.square().sum(-1)
    if keep is None:
        return squares.mean((0, 2))
    return (squares * keep[:, None]).sum((0, 2)) / keep.sum()


def _key_weight(k: Tensor) -> Tensor:
    """exp(-|k|^2 / 2), the factor of the Gaussian that depends on the key alone: (B, H, N, K) -> (B, H, N). At least
    exp(-LARGEST_EXPONENT): for longer keys tau is far beyond the polynomial, and weights of 0 have no gradient."""
    return (-(k.square().sum(-1) / 2).clamp_max(LARGEST_EXPONENT)).exp()


def _check(power: int, tau0: float, smooth: float, method: str) -> None:
    if power < 2 or power % 2:
        raise SetupError(f"attention.power must be an even integer >= 2, got {power}: an odd power of sinc is negative")
    check_range("attention.tau0", tau0, 0, above_low=True)  # -log of a usual weight before training
    if smooth < 0 or (smooth > 0 and method == "taylor"):
        raise SetupError(
            f"attention.smooth must be >= 0 with attention.method=rff or gauss, where it is added to every weight, and "
            f"0 with taylor, which has no negative weights; got {smooth} with attention.method={method}"
        )


def _taylor_map(geometry: Geometry, order: int) -> tuple[nn.Module, int]:
    if order < 2 or order % 2 or order > MAX_FEATURE_ORDER:
        must = f"attention.order must be an even integer from 2 to {MAX_FEATURE_ORDER}"
        raise SetupError(f"{must}, got {order}: an odd order yields negative weights")
    count = math.comb(geometry.head_dim + order, order)
    _check_count(count, "a smaller attention.order or more heads")
    return polynomial.Monomials(geometry.head_dim, polynomial.taylor_coefficients(order)), count


def _random_map(geometry: Geometry, power: int, features: int, sampler: Sampler) -> tuple[nn.Module, int]:
    check_features(features, even=True)  # cosines and sines
    _check_count(features, "fewer attention.features")
    count, width = features // 2, geometry.head_dim
    seeds = [seed_of("fourier_linear", geometry.seed, geometry.layer, head) for head in range(geometry.heads)]
    frequencies = [sample_frequencies(count, width, power, sampler, seed) for seed in seeds]
    return CosineFeatures(torch.stack(frequencies), torch.full((count,), 1 / count)), features


def _gauss_map(geometry: Geometry, power: int, nodes: int, width: int) -> tuple[nn.Module, int]:
    check_range("attention.nodes", nodes, 2)
    if width < 1 or geometry.head_dim % width:
        must = f"divide the {geometry.head_dim} coordinates of a head"
        raise SetupError(f"attention.head_kernel_dim must {must}, got {width}")
    count = 2 * math.ceil(nodes**width / 2) * (geometry.head_dim // width)
    _check_count(count, "a smaller attention.head_kernel_dim or fewer attention.nodes")
    return CosineFeatures(*gauss_grid(nodes, power, width)), count


def _check_count(count: int, remedy: str) -> None:
    if count > MAX_FEATURES:
        more = f"{count} features per head, more than {MAX_FEATURES}"
        raise SetupError(f"attention=fourier_linear would need {more}: choose {remedy}")

"""FourierFormer attention: products of sinc kernels instead of softmax's isotropic Gaussian."""

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Geometry, Keep, to_float32
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.attention.engines.log_kernel import SINC_TURNS
from fourierformer.attention.engines.weighted import WATCHED_SEQUENCES, of_last_query
from fourierformer.errors import SetupError, check_range
from fourierformer.kernels.sinc import choose_backend, sinc_attention
from fourierformer.kernels.sinc.reference import log_sinc_value, sinc_attention_reference
from fourierformer.marks import mark

WIDEST = 1e6  # radius: float32 holds R (q - k) of size 1e6 to 0.06 only, so its sine is meaningless
LEAST_ATTENDED_SHARE = 0.1
ADVICE = (
    "attended share below 10 % in at least one layer (`attended_share` in metrics.jsonl): attention.eps exceeds most "
    "sums of weights, so output and gradient are small. Try attention.eps=0 or attention.radius=matched"
)


def paper_radius(causal: bool) -> float:
    """The initial radius of the authors' code: 2.0 in the language model, 1.0 in the vision transformer.

    At 2.0 the vision transformer does not learn: with 64 coordinates per head, eps exceeds the sum of weights in 79 %
    of the rows.
    """
    return 2.0 if causal else 1.0


def matched_radius(head_dim: int, power: int) -> float:
    """The radius at which the kernel is as sharp as softmax.

    Near 0, sinc(x)^p = exp(-p x^2 / 6), so q.k enters log w with coefficient (p/3) R^2; softmax has 1/sqrt(D).
    Equal at R = sqrt(3 / (p sqrt(D))): 0.43 for D = 16, 0.36 for D = 32, 0.31 for D = 64 at power 4.
    """
    return math.sqrt(3 / (power * math.sqrt(head_dim)))


def initial_radius(
    radius: float | Literal["paper", "matched"], geometry: Geometry, power: int, scale: float = 1.0
) -> float:
    """The radius at the start: a number, or `scale` times the one of that name."""
    named = {"paper": paper_radius(geometry.causal), "matched": matched_radius(geometry.head_dim, power)}
    start = scale * named[radius] if isinstance(radius, str) else float(radius)
    check_range("attention.radius", start, 0, WIDEST, above_low=True)  # -R is the same kernel as R
    return start


def check_power(power: int, allow_negative: bool, backend: str) -> None:
    if power < 1 or (power % 2 and not allow_negative):
        reason = "an odd power has negative weights, which made training unstable (FourierFormer, section 3.2)"
        way = "To train it nevertheless, set attention.allow_negative=true"
        raise SetupError(f"attention.power must be an even integer >= 2, got {power}: {reason}. {way}")
    if power % 2 and backend not in ("auto", "reference"):
        odd = f"has no odd powers, got attention.power={power}"
        raise SetupError(f"attention.backend={backend} {odd}: use auto or reference")


@register("fourier", "the paper: sinc⁴ products, one radius per layer, at first 2 if causal, else 1")
@register("fourier_matched", "starts as sharp as softmax: R = sqrt(3 / (4 sqrt(D)))", radius="matched")
@register("fourier_head", "one radius per head", radius_shape="head")
@register("fourier_vector", "one radius per coordinate", radius_shape="coordinate")
@register("fourier_first_coordinate", "diagnostic: authors' CUDA source, out-of-bounds reads = 0", coordinates="first")
class Fourier(Attention):
    """w_ij = prod_d sinc(R (q_id - k_jd))^power, normalised by eps + sum_j w_ij (FourierFormer, Definition 1).

    The radius R is learned: one per layer as in the paper, per head, or per coordinate. eps = 1e-6 is the authors'
    code, 0 the paper's formula; it changes the function where all weights are tiny (a sharp kernel or large D).
    `coordinates="first"` is a diagnostic: the kernel of the first coordinate of each head alone. The authors' released
    CUDA source computes it if its out-of-bounds reads of the one-element radius return 0.
    An odd power has weights of both signs, which the paper found unstable; `allow_negative` trains it nevertheless, by
    the reference formula with N^2 D numbers per head. With eps = 0, the sum of a row may then approach 0.
    O(N^2 D) time, memory linear in N.

    `diagnostics` reports the radius and, after whole sequences were evaluated, the attended share of their last
    queries, sum_j w_ij / (eps + sum_j w_ij). Where it is near 0 the layer is off: its gradient is near 0 as well.
    """

    rotary_ok = SINC_TURNS
    partial_queries = cross_ok = padding_ok = True
    cost, state, source = "N² C sines", "2 N C", "Nguyen et al. 2022, arXiv 2206.00206"

    def __init__(
        self, geometry: Geometry, *, power: int = 4,
        radius: float | Literal["paper", "matched"] = "paper",
        radius_shape: Literal["scalar", "head", "coordinate"] = "scalar", radius_lr_multiplier: float = 1.0,
        eps: float = 1e-6, coordinates: Literal["all", "first"] = "all", backend: str = "auto",
        allow_negative: bool = False,
    ):  # fmt: skip
        super().__init__(geometry)
        check_power(power, allow_negative, backend)
        check_range("attention.eps", eps, 0)  # it is added to a sum of weights
        self.power, self.eps, self.coordinates, self.backend = power, eps, coordinates, backend
        self.has_share = eps > 0 and power % 2 == 0  # with weights of both signs, eps has no share of their sum
        shape = {"scalar": (), "head": (geometry.heads, 1), "coordinate": (1, geometry.head_dim)}[radius_shape]
        self.radius = nn.Parameter(torch.full(shape, initial_radius(radius, geometry, power)))
        mark(self, "radius", lr_multiplier=radius_lr_multiplier, no_weight_decay=True)
        self.attended_share = EvaluationMean()  # see _measure_share

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        # Not for single queries (sliding windows, generation), which would cost a third more.
        # Nor in an exported graph: it has no diagnostics, and a slice of the batch would fix the batch's size.
        measured = self.has_share and not self.training and not torch.compiler.is_exporting()
        if measured and q.shape[-2] > 1 and (cross or q.shape[-2] == k.shape[-2]):
            self._measure_share(q, k, keep, cross)
        return self._attend(q, k, v, self.backend, causal=self.geometry.causal and not cross, keep=keep)

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        """w_ij / (eps + sum_j w_ij): outputs with the identity as values. Rows sum to less than 1 if eps > 0.

        Not by the fused kernel, which supports neither float64 nor values as wide as the number of keys.
        """
        q, k = to_float32(q, k)
        identity = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        with torch.autocast(q.device.type, enabled=False):
            backend = "auto" if q.device.type == "cpu" else "portable"
            return self._attend(q, k, identity, backend, causal=self.geometry.causal)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, backend: str, *, causal: bool, keep: Keep = None) -> Tensor:
        q, k, radius = self._kernel_inputs(q, k)
        options: dict[str, Any] = {"power": self.power, "eps": self.eps, "causal": causal, "keep": keep}
        if self.power % 2:
            return sinc_attention_reference(q, k, v, radius, **options).to(v.dtype)
        return sinc_attention(q, k, v, radius, backend=backend, **options)

    def _kernel_inputs(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and the radius: all coordinates, or the first alone."""
        if self.coordinates == "all":
            return q, k, self.radius
        return q[..., :1], k[..., :1], self.radius[:, :1] if self.radius.dim() else self.radius

    @torch.no_grad()
    def _measure_share(self, q: Tensor, k: Tensor, keep: Keep, cross: bool) -> None:
        """Add the attended share of the last query, which sees every key, in all heads of the first
        WATCHED_SEQUENCES, for `diagnostics`."""
        q, k, keep = q[:WATCHED_SEQUENCES], k[:WATCHED_SEQUENCES], None if keep is None else keep[:WATCHED_SEQUENCES]
        q = of_last_query(q, None if cross else keep)[:, :, None]
        q, k, radius = self._kernel_inputs(q.float(), k.float())
        scores = self.power * log_sinc_value((q - k) * (radius[:, None] if radius.dim() else radius)).sum(-1)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None], -math.inf)
        self.attended_share.add((scores.logsumexp(-1) - math.log(self.eps)).sigmoid())

    def diagnostics(self) -> dict[str, float]:
        numbers = {"radius": self.radius.detach().abs().mean().item()}
        attended_share = self.attended_share.value()
        if not math.isnan(attended_share):  # nan before the first evaluation, and with eps = 0, where it is always 1
            numbers["attended_share"] = attended_share
        if attended_share < LEAST_ATTENDED_SHARE:
            warnings.warn(ADVICE, stacklevel=2)  # one text, so Python shows it once
        return numbers

    def backend_name(self, device: torch.device) -> str:
        if self.power % 2:
            return "reference"
        width = self.geometry.head_dim
        return choose_backend(torch.empty(0, device=device), self.backend, power=self.power, width=width)[0]

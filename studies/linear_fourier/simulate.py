"""How far linear Fourier attention is from exact Fourier attention, and where it is of use.

    python -m studies.linear_fourier.simulate                  # 2 minutes on 2 cores, into runs/linear_fourier
    python -m studies.linear_fourier.simulate --quick          # seconds: a few rows
    python -m studies.linear_fourier.simulate --out studies/linear_fourier

Error: |output - exact output| / |exact output| (Frobenius) of one head over 256 tokens, q and k ~ N(0, s^2),
v ~ N(0, 1), power 4, R = 2 unless tau says otherwise; the median of 8 data sets.
tau = n R^2 s^2 D / 3 is -log of a usual weight.
A: random features (floor of the denominator included). B: Taylor features of the Gaussian that sinc^4 resembles.
C: Gauss rules, for kernels over few coordinates.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fourierformer.attention import Geometry, build
from fourierformer.attention.mechanisms.fourier_linear import radius_for
from fourierformer.attention.mechanisms.polynomial import taylor_kernel
from fourierformer.files import write_csv
from fourierformer.kernels.sinc import sinc_attention
from fourierformer.provenance import header, machine
from fourierformer.report.picture import Key, Picture, logarithmic, new_panels, series_colour
from fourierformer.runs.console_io import Parser, exit_on_user_error

POWER, RADIUS, TOKENS, SETS = 4, 2.0, 256, 8
# how a method's name begins -> its legend
METHODS = {
    "rff, iid": "random features, independent",
    "rff, orth": "random features, orthogonal",
    "rff, sobol": "random features, Sobol points",
    "Gaussian": "Taylor polynomial, orders 1 to 4",
}
READING = """
Reading: random features need tau of about 2 or less; there the Taylor polynomial of order 2 does as well with a tenth
of the features, or better. Where either is accurate, sinc^4 attention equals Gaussian attention (B, infinite order)
to 2 %: the zeros of sinc play no part. At the paper's radius (R = 2, s = 0.23 at the start of training: tau = 4.4 for
D = 16) neither follows the exact kernel: the linear form cannot replace it there. Gauss rules do follow it, for
kernels over one or two coordinates, once their nodes resolve it (resolution up to 1; abruptly worse above 1.3)."""


@dataclass
class Row:
    table: str
    width: int  # coordinates of a head
    deviation: float  # s
    tau: float
    method: str
    features: int | None
    error: float
    lowest: float
    highest: float
    negative_weights: float  # share of all
    negative_sums: float  # share of queries whose weights add up to less than 0
    resolution: float | None = None  # gauss: the share in use


@dataclass
class Data:
    """q, k, v (1, SETS, TOKENS, D), every head a data set, and the exact output."""

    q: Tensor
    k: Tensor
    v: Tensor
    deviation: float
    radius: float
    exact: Tensor

    @property
    def tau(self) -> float:
        return POWER * self.radius**2 * self.deviation**2 * self.q.shape[-1] / 3


def draw(width: int, deviation: float, radius: float = RADIUS, group: int | None = None) -> Data:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, SETS, TOKENS, width, generator=generator, dtype=torch.float64)
    q, k = deviation * q, deviation * k
    if group:
        exact = grouped_attention(q, k, v, radius, group)
    else:
        exact = sinc_attention(q, k, v, torch.tensor(radius, dtype=torch.float64), power=POWER)
    return Data(q, k, v, deviation, radius, exact)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, radius: float, group: int) -> Tensor:
    """Weights that are the mean, over groups of coordinates, of the products of sinc^power."""
    weights = 0
    for qg, kg in zip(q.split(group, -1), k.split(group, -1), strict=True):
        difference = radius * (qg[:, :, :, None] - kg[:, :, None])
        weights = weights + (torch.sinc(difference / torch.pi) ** POWER).prod(-1)
    return weights @ v / weights.sum(-1, keepdim=True)


def row(table: str, data: Data, method: str, features: int | None, output: Tensor, weights: Tensor) -> Row:
    errors = (output - data.exact).norm(dim=(-2, -1)) / data.exact.norm(dim=(-2, -1))
    negative = float((weights < 0).double().mean()), float((weights.sum(-1) < 0).double().mean())
    spread = float(errors.quantile(0.5)), float(errors.min()), float(errors.max())
    return Row(table, data.q.shape[-1], data.deviation, data.tau, method, features, *spread, *negative)


def measured(table: str, data: Data, name: str, **knobs) -> Row:
    """The mechanism as it is trained, with this radius."""
    width = data.q.shape[-1]
    geometry = Geometry(dim=SETS * width, heads=SETS, length=TOKENS, causal=False)
    layer = build("fourier_linear", geometry, power=POWER, **knobs).double()
    with torch.no_grad():
        layer.radius.fill_(data.radius)
        output = layer.mix(data.q, data.k, data.v, data.v)
        f = layer.phi(data.q, data.k)
        result = row(table, data, name, layer.features, output, f.q @ f.k.mT)
    result.resolution = float(layer.strain) if layer.method == "gauss" else None
    return result


def uniform(table: str, data: Data) -> Row:
    """What ignoring attention costs: the mean of the values."""
    return row(table, data, "uniform", None, data.v.mean(2, keepdim=True), torch.ones(1, 1))


def surrogate(data: Data, order: int | None) -> Row:
    """exp(-n R^2 |q - k|^2 / 6), whole, or with exp(n R^2 q.k / 3) cut at any order (the mechanism takes even ones)."""
    scale = POWER * data.radius**2 / 3
    logits = scale * data.q @ data.k.mT
    kernel = logits.exp() if order is None else taylor_kernel(logits, order)
    weights = kernel * (-scale / 2 * data.k.square().sum(-1)).exp()[..., None, :]
    output = weights @ data.v / weights.sum(-1, keepdim=True)
    if order is None:
        return row("B", data, "Gaussian, infinite order", None, output, weights)
    return row("B", data, f"Gaussian, order {order}", math.comb(data.q.shape[-1] + order, order), output, weights)


def random_features(quick: bool) -> Iterator[Row]:
    cases = [(16, 0.1, RADIUS), (16, 0.15, RADIUS), (16, 0.2, RADIUS), (16, 0.3, RADIUS), (16, 1.0, RADIUS)]
    cases += [(32, 0.1, RADIUS), (32, 0.15, RADIUS), (32, 0.3, RADIUS)]
    cases += [(width, 1.0, radius_for(1.0, POWER, width, 1.0)) for width in (16, 32)]
    for case in cases[:1] if quick else cases:
        data = draw(*case)
        yield uniform("A", data)
        for sampler in ("iid", "orth", "sobol"):
            for features in (64, 256) if quick else (64, 256, 1024, 4096):
                yield measured("A", data, f"rff, {sampler}", method="rff", features=features, sampler=sampler)


def taylor_features(quick: bool) -> Iterator[Row]:
    cases = [(16, 0.1), (16, 0.15), (16, 0.2), (16, 0.3), (32, 0.1), (32, 0.15)]
    for case in cases[:1] if quick else cases:
        data = draw(*case)
        for order in (1, 2, 3, 4, None):
            yield surrogate(data, order)


def gauss_rules(quick: bool) -> Iterator[Row]:
    cases = [(1, 1.0, (16, 20, 24, 28)), (2, 0.1, (3, 4)), (2, 0.3, (6, 8)), (2, 1.0, (16, 20, 24, 28, 32))]
    cases += [(4, 0.1, (3, 4)), (4, 0.3, (6, 8))]
    for width, deviation, nodes in cases[1:3] if quick else cases:
        data = draw(width, deviation)
        yield uniform("C", data)
        for count in nodes:
            yield measured("C", data, f"gauss, {count} nodes", method="gauss", nodes=count, head_kernel_dim=width)
    data = draw(2, 0.3)
    yield measured("C", data, "rff, sobol", method="rff", features=64, sampler="sobol")
    data = draw(16, 0.3, group=2)
    yield uniform("C, mean of 8 groups", data)
    for count in (6, 8):
        yield measured("C, mean of 8 groups", data, f"gauss, {count} nodes", method="gauss", nodes=count)


def slope(rows: list[Row]) -> float:
    """Of log error against log features: -1/2 where the noise is independent."""
    features, errors = [r.features for r in rows], [r.error for r in rows]
    return float(np.polyfit(np.log(features), np.log(errors), 1)[0])


def picture(rows: list[Row]) -> Picture:
    """Error against features: a panel for each case of table A that table B has too."""
    case = lambda r: (r.width, r.deviation, r.tau)  # noqa: E731
    cases = sorted({case(r) for r in rows if r.table == "B"} & {case(r) for r in rows if r.table == "A"})
    titles = [f"D = {width}, tau = {tau:.2g}" for width, _, tau in cases]
    figure, panels = new_panels(titles, "features", "relative error of the output", (2.6 * len(cases) + 0.6, 3))
    keys = {kind: Key(series_colour(i), label) for i, (kind, label) in enumerate(METHODS.items())}
    for axes, shown in zip(panels, cases, strict=True):
        of_case = [r for r in rows if case(r) == shown and r.table in ("A", "B") and r.features]
        for kind, key in keys.items():
            line = [r for r in of_case if r.method.startswith(kind)]
            axes.plot([r.features for r in line], [r.error for r in line], "o-", color=key.colour.fixed, markersize=3)
        axes.set(xscale="log", yscale="log")
        logarithmic(axes.xaxis, (1,))  # with 2 and 5 the numbers overlap
        logarithmic(axes.yaxis)
        axes.minorticks_off()
    title = "Error of linear Fourier attention"
    return Picture(figure, "linear_fourier_errors", title, list(keys.values()))


def show(r: Row) -> None:
    features = "-" if r.features is None else r.features
    negative = f"{100 * r.negative_weights:.0f} % / {100 * r.negative_sums:.0f} %"
    resolution = "" if r.resolution is None else f"{r.resolution:.2f}"
    print(
        f"{r.table:20}{r.width:>3}{r.deviation:>6g}{r.tau:>7.2f}  {r.method:26}{features:>6}{r.error:>9.2g}"
        f"{negative:>14}{resolution:>8}",
        flush=True,
    )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rows of each table: shows that it works")
    parser.add_argument("--out", type=Path, default=Path("runs/linear_fourier"), help="folder for table and plot")
    args = parser.parse_args()
    with exit_on_user_error():
        print(f"{'table':21}{'D':>2}{'s':>6}{'tau':>7}  {'method':24}features    error  negative: weights / sums  res.")
        rows = []
        for part in (random_features, taylor_features, gauss_rules):
            for result in part(args.quick):
                rows.append(result)
                show(result)
        head = header("-m studies.linear_fourier.simulate", ("torch", "numpy"), machine=machine())
        write_csv(args.out / "linear_fourier_errors.csv", [asdict(row) for row in rows], head, digits=4)
        picture(rows).save(args.out)
    for sampler in ("iid", "orth", "sobol"):
        line = [r for r in rows if (r.method, r.width, r.deviation) == (f"rff, {sampler}", 16, 0.1) and r.table == "A"]
        print(f"slope of log error against log features, {sampler}, D = 16, s = 0.1: {slope(line):.2f}")
    print(READING)
    print(f"\nTable and plot: {args.out}")


if __name__ == "__main__":
    main()

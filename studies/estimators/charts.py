"""The estimators of the theory as charts, from the rows that simulate.py writes: a panel per case, side by side."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fourierformer.report.picture import (
    DASH_DOTTED,
    DASHED,
    DOTTED,
    INK,
    SMALL,
    SOLID,
    Colour,
    Key,
    Picture,
    logarithmic,
    new_panels,
    series_colour,
)

Rows = Iterable[Mapping]
Ratios = dict[str, dict[float, float]]  # kernel -> correlation -> ratio of errors
KERNELS = ("sinc^1", "sinc^2", "sinc^3", "sinc^4", "sinc^6")  # each has its colour; the Gaussians are ink
ERROR = {"density": "MISE", "regression": "mean squared error"}
COUNT, CORRELATION = "samples N", "correlation of the two features"
STYLES = {"plancherel": SOLID, "theorem": DASHED, "cross-validation": DOTTED}  # rules that follow the number of samples
LEGEND = {"theorem": "radius grows by the theorem", "cross-validation": "radius by cross-validation"}
RATIO_SAMPLES = 1000


@dataclass(frozen=True)
class ErrorLine:
    """Mean errors of one kernel under one rule for the radius; `x` is N, or the correlation of the features."""

    kernel: str
    rule: str
    x: list[float]
    error: list[float]
    standard_error: list[float]


@dataclass(frozen=True)
class RatePanel:
    """`theorem`: the exponent of N that a theorem states. It is drawn above the first points, for a slope is stated and
    no height."""

    title: str
    lines: list[ErrorLine]
    theorem: float | None = None


def rate_panels(part: str, rates: Rows, slopes: Rows) -> list[RatePanel]:
    """Error against the number of samples: a panel for every case and dimension."""
    rows = [row for row in rates if row["part"] == part and row["rule"] in STYLES]
    stated = {(row["case"], str(row["dim"])): float(row["theorem"]) for row in slopes if _is_stated(row, part)}
    cases = dict.fromkeys((row["case"], str(row["dim"])) for row in rows)
    return [
        RatePanel(
            f"{case}, D = {dim}",
            _lines([row for row in rows if (row["case"], str(row["dim"])) == (case, dim)], "count"),
            stated.get((case, dim)),
        )
        for case, dim in sorted(cases, key=lambda panel: (panel[1], panel[0] != "normal"))
    ]


def _is_stated(slope: Mapping, part: str) -> bool:
    return slope["part"] == part and slope["theorem"] not in ("", None)


def correlation_panel(part: str, rates: Rows) -> RatePanel:
    """Error against the correlation of two features, every kernel at its best radius."""
    rows = [row for row in rates if row["part"] == part and row["rule"] not in STYLES]
    return RatePanel("", _lines(rows, "correlation"))


def _lines(rows: list[Mapping], x: str) -> list[ErrorLine]:
    lines = []
    for kernel, rule in dict.fromkeys((row["kernel"], row["rule"]) for row in rows):
        own = sorted((row for row in rows if (row["kernel"], row["rule"]) == (kernel, rule)), key=lambda r: float(r[x]))
        numbers = ([float(row[name]) for row in own] for name in (x, "error", "standard_error"))
        lines.append(ErrorLine(kernel, rule, *numbers))
    return lines


def error_chart(panels: list[RatePanel], x_label: str, y_label: str, name: str, title: str) -> Picture:
    figure, all_axes = _new_panels([panel.title for panel in panels], x_label, y_label)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_errors(axes, panel)
        axes.set_yscale("log")
        if x_label == COUNT:
            axes.set_xscale("log")
            ticks = sorted({x for line in panel.lines for x in line.x})[::2]
            axes.set_xticks(ticks, [f"{count:,.0f}" for count in ticks])
            axes.minorticks_off()
        logarithmic(axes.yaxis)
    return Picture(figure, name, title, error_keys(panels))


def _draw_errors(axes, panel: RatePanel) -> None:
    for line in reversed(panel.lines):  # many lie upon each other: the first of the legend on top
        colour, style = _colour(line.kernel).fixed, _style(line.kernel, line.rule)
        axes.errorbar(line.x, line.error, line.standard_error, color=colour, linewidth=0.6, fmt="none")
        axes.plot(line.x, line.error, color=colour, linestyle=style, linewidth=1.3, marker="o", markersize=2.5)
    if panel.theorem is not None:
        counts = np.array(sorted({x for line in panel.lines for x in line.x}))
        stated = 1.25 * max(line.error[0] for line in panel.lines) * (counts / counts[0]) ** panel.theorem
        axes.plot(counts, stated, color=INK.fixed, linewidth=1, linestyle=DASH_DOTTED)


def error_keys(panels: list[RatePanel]) -> list[Key]:
    """Colours are kernels, line styles are rules (what solid means stands in the caption): one legend for all."""
    lines = [line for panel in panels for line in panel.lines]
    kernels, rules = dict.fromkeys(line.kernel for line in lines), {line.rule for line in lines}
    keys = [Key(_colour(kernel), kernel, _style(kernel)) for kernel in kernels]
    keys += [Key(INK, text, STYLES[rule]) for rule, text in LEGEND.items() if rule in rules]
    theorem = any(panel.theorem is not None for panel in panels)
    return [*keys, Key(INK, "slope that the theorem states", DASH_DOTTED)] if theorem else keys


def ratio_panels(rows: Rows) -> dict[str, Ratios]:
    """Exact errors relative to the isotropic Gaussian's, from estimator_correlations.csv: a panel per dimension."""
    panels: dict[str, Ratios] = {}
    for row in rows:
        if int(row["samples"]) == RATIO_SAMPLES:
            line = panels.setdefault(f"D = {row['dim']}", {}).setdefault(row["kernel"], {})
            line[float(row["correlation"])] = float(row["ratio_to_gaussian"])
    return panels


def ratio_chart(panels: dict[str, Ratios], name: str, title: str) -> Picture:
    """Correlations stand on Fisher's scale, arctanh: on a linear one .9, .95 and .99 would be one point."""
    y_label = "MISE, isotropic Gaussian = 1"
    figure, all_axes = _new_panels(list(panels), "correlation of the features", y_label)
    for axes, lines in zip(all_axes, panels.values(), strict=True):
        for kernel, line in lines.items():
            look = {"color": _colour(kernel).fixed, "linestyle": _style(kernel), "linewidth": 1.3}
            axes.plot(np.arctanh(list(line)), list(line.values()), marker="o", markersize=2.5, **look)
        correlations = list(next(iter(lines.values())))
        axes.set_xticks(np.arctanh(correlations), [f"{correlation:g}" for correlation in correlations])
        axes.set_ylim(bottom=0)
    kernels = dict.fromkeys(kernel for lines in panels.values() for kernel in lines)
    return Picture(figure, name, title, [Key(_colour(kernel), kernel, _style(kernel)) for kernel in kernels])


def _new_panels(titles: list[str], x_label: str, y_label: str):
    """A single panel needs no title inside the picture."""
    width, height = SMALL
    size = (0.9 + (width - 0.9) * len(titles), height)
    return new_panels(titles if len(titles) > 1 else [""], x_label, y_label, size)


def _colour(kernel: str) -> Colour:
    return series_colour(KERNELS.index(kernel)) if kernel in KERNELS else INK


def _style(kernel: str, rule: str = "") -> tuple:
    """The Gaussians that know the covariance are dashed."""
    return DASHED if kernel.startswith("gaussian,") else STYLES.get(rule, SOLID)

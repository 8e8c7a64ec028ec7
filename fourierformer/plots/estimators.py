"""Errors of the estimators of the theory on log-log axes, with the slope that a theorem states."""

from dataclasses import dataclass

import numpy as np

from fourierformer.plots.picture import (
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
    new_figure,
    new_panels,
    series_colour,
)

KNOWN = "gaussian, whitened"  # the Gaussian that knows the covariance
TWO_PANELS = (6.4, 2.9)  # inches
RULES = {"plancherel": SOLID, "theorem": DASHED, "cross-validation": DOTTED}
SAID = {
    "theorem": "radius grows by the theorem",
    "cross-validation": "radius by cross-validation",
}


@dataclass(frozen=True)
class ErrorLine:
    """Mean errors of one kernel under one rule for the radius; `x` is N, or the correlation of the features."""

    kernel: str
    rule: str
    x: list[float]
    error: list[float]
    standard_error: list[float]


def _colour(kernel: str, kernels: list[str]) -> Colour:
    """The Gaussians, which everything is held against, are ink."""
    return INK if kernel.startswith("gaussian") else series_colour(kernels.index(kernel))


def _style(kernel: str, rule: str) -> tuple:
    return DASHED if kernel == KNOWN else RULES.get(rule, SOLID)


def estimator_keys(lines: list[ErrorLine], kernels: list[str], theorem: bool) -> list[Key]:
    """Colours are kernels, line styles are rules (what solid means stands in the caption): said once for all panels."""
    shown, rules = {line.kernel for line in lines}, {line.rule for line in lines}
    keys = [Key(_colour(kernel, kernels), kernel, _style(kernel, "")) for kernel in kernels if kernel in shown]
    keys += [Key(INK, said, RULES[rule]) for rule, said in SAID.items() if rule in rules]
    return [*keys, Key(INK, "slope that the theorem states", DASH_DOTTED)] if theorem else keys


def estimator_chart(
    lines: list[ErrorLine], kernels: list[str], theorem: float | None, name: str, title: str, labels: tuple[str, str]
) -> Picture:
    """One panel. `theorem`: an exponent of N, drawn above the first points, for its slope is stated, not its height."""
    figure, axes = new_figure(*labels, SMALL)
    for line in reversed(lines):  # many lie upon each other: the first of the legend on top
        colour, style = _colour(line.kernel, kernels).fixed, _style(line.kernel, line.rule)
        axes.errorbar(line.x, line.error, line.standard_error, color=colour, linewidth=0.6, fmt="none")
        axes.plot(line.x, line.error, color=colour, linestyle=style, linewidth=1.3, marker="o", markersize=2.5)
    if theorem is not None:
        counts = np.array(sorted({x for line in lines for x in line.x}))
        top = 1.25 * max(line.error[0] for line in lines)
        axes.plot(counts, top * (counts / counts[0]) ** theorem, color=INK.fixed, linewidth=1, linestyle=DASH_DOTTED)
    axes.set_yscale("log")
    if labels[0].startswith("samples"):
        axes.set_xscale("log")
        ticks = sorted({x for line in lines for x in line.x})[::2]
        axes.set_xticks(ticks, [f"{count:,.0f}" for count in ticks])
        axes.minorticks_off()
    logarithmic(axes.yaxis)
    return Picture(figure, name, title, estimator_keys(lines, kernels, theorem is not None))


def ratio_chart(panels: dict[str, dict[str, dict[float, float]]], name: str, title: str) -> Picture:
    """Errors relative to the isotropic Gaussian's: panel title -> kernel -> correlation -> ratio.

    Correlations stand on Fisher's scale, arctanh: on a linear one .9, .95 and .99 would be one point.
    """
    figure, panel_axes = new_panels(
        list(panels), "correlation of the features", "MISE / MISE of the isotropic Gaussian", TWO_PANELS
    )
    kernels = list(next(iter(panels.values())))
    styles = {kernel: DASHED if kernel.startswith("gaussian,") else SOLID for kernel in kernels}
    for axes, ratios in zip(panel_axes, panels.values(), strict=True):
        for kernel, line in ratios.items():
            look = {"color": _colour(kernel, kernels).fixed, "linestyle": styles[kernel], "linewidth": 1.3}
            axes.plot(np.arctanh(list(line)), list(line.values()), marker="o", markersize=2.5, **look)
        correlations = list(next(iter(ratios.values())))
        axes.set_xticks(np.arctanh(correlations), [f"{correlation:g}" for correlation in correlations])
        axes.set_ylim(bottom=0)
    return Picture(figure, name, title, [Key(_colour(kernel, kernels), kernel, styles[kernel]) for kernel in kernels])

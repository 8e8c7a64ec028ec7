"""Differences with their intervals, times side by side, and costs against the number of tokens."""

import numpy as np

from fourierformer.report.picture import (
    INK,
    PAGE,
    WIDE,
    Key,
    Picture,
    logarithmic,
    new_figure,
    plain,
    series_colour,
    series_style,
)
from fourierformer.results.statistics import Difference

COST_PANEL = (3.6, 2.7)  # inches
Points = dict[str, list[tuple[int, float]]]  # name: (tokens, value)


def difference_chart(
    differences: list[tuple[str, Difference]], name: str, title: str, axis: str, caption: str = "", wide: bool = False
) -> Picture:
    """Draw a line per (label, difference), the baseline at 0. The colour of an interval shows whether it holds 0."""
    figure, axes = new_figure(axis, "", (PAGE if wide else WIDE[0], 0.9 + 0.28 * len(differences)))
    clear, unclear, single = series_colour(0), series_colour(1), INK
    used = []
    for line, (_, difference) in enumerate(differences):
        assert difference.mean is not None  # who has none is not drawn
        if difference.half_width is None:
            colour = single
            axes.plot(difference.mean, line, "o", markersize=4, markerfacecolor="none", color=colour.fixed)
        else:
            colour = unclear if abs(difference.mean) <= difference.half_width else clear
            look = {"color": colour.fixed, "capsize": 3, "elinewidth": 1.6, "markersize": 4}
            axes.errorbar(difference.mean, line, xerr=difference.half_width, fmt="o", **look)
        used.append(colour)
    axes.axvline(0, color=INK.fixed, linewidth=0.8, alpha=0.4)
    names = [label for label, _ in differences]
    axes.set_yticks(range(len(names)), names, color=INK.fixed, fontsize=8, parse_math=False)
    axes.set_ylim(len(differences) - 0.5, -0.5)
    axes.margins(x=0.06)
    if np.ptp(axes.get_xlim()) < 1e-9:  # of zeros alone, whose scale would be rounding errors
        axes.set_xlim(-1, 1)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    texts = {clear: "95 % interval without 0", unclear: "95 % interval that holds 0"}
    texts |= {single: "no interval: one seed, or no variation"}
    shapes = {single: "circle"}
    keys = [Key(colour, text, point=shapes.get(colour, "")) for colour, text in texts.items() if colour in used]
    return Picture(figure, name, title, keys, caption, wide=wide)


def time_chart(values: dict[str, dict[str, float]], name: str, title: str, x_label: str) -> Picture:
    """`values`: kind -> {name: time}; a line for each name, a dot of one colour for each kind.

    The scale is logarithmic, since times differ by powers of ten, and has no zero: hence dots and no bars.
    """
    names = list(dict.fromkeys(who for kind in values.values() for who in kind))
    figure, axes = new_figure(x_label, "", (3.6, 0.8 + 0.32 * len(names)))
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    keys = [Key(series_colour(i), kind, point="disc") for i, kind in enumerate(values)]
    for kind, key in zip(values.values(), keys, strict=True):
        lines = [names.index(who) for who in kind]
        axes.plot(list(kind.values()), lines, color=key.colour.fixed, marker="o", markersize=6, linestyle="none")
    axes.set_xscale("log")
    logarithmic(axes.xaxis, (1,))
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.margins(x=0.08, y=0.5 / len(names))
    axes.invert_yaxis()
    return Picture(figure, name, title, keys)


def cost_chart(rows: list[tuple[str, list[tuple[str, Points]]]], name: str, title: str) -> Picture:
    """Costs against the number of tokens on log-log axes, where a slope is an exponent of N.

    `rows`: (label of the y axis, [(heading, points), ...]), a panel for every heading; a line for each name.
    """
    from matplotlib.figure import Figure

    columns = max(len(panels) for _, panels in rows)
    figure = Figure(figsize=(COST_PANEL[0] * columns, COST_PANEL[1] * len(rows)), layout="constrained")
    keys = _cost_keys(rows)
    grid = figure.add_gridspec(len(rows), columns)
    for i, (y_label, panels) in enumerate(rows):
        first = None
        for j, (heading, points) in enumerate(panels):
            axes = figure.add_subplot(grid[i, j], sharey=first)
            first = first or axes
            _draw_costs(axes, points, keys)
            axes.set_title(heading, fontsize=9, color=INK.fixed)
            axes.set_xlabel("tokens N", fontsize=9, color=INK.fixed)
            axes.set_ylabel(y_label if j == 0 else "", fontsize=9, color=INK.fixed)
    return Picture(figure, name, title, list(keys.values()))


def _cost_keys(rows: list[tuple[str, list[tuple[str, Points]]]]) -> dict[str, Key]:
    """Ink for the first, which the others are held against."""
    first, *others = dict.fromkeys(who for _, panels in rows for _, points in panels for who in points)
    return {first: Key(INK, first)} | {who: Key(series_colour(i), who, series_style(i)) for i, who in enumerate(others)}


def _draw_costs(axes, points: Points, keys: dict[str, Key]) -> None:
    for who, line in points.items():
        look = {"color": keys[who].colour.fixed, "linestyle": keys[who].style, "linewidth": 1.2}
        axes.plot(*zip(*line, strict=True), marker="o", markersize=2.5, **look)
    axes.set(xscale="log", yscale="log")
    counts = sorted({tokens for line in points.values() for tokens, _ in line})
    shown = counts[:: max(1, -(-len(counts) // 4))]  # of seven every other one
    axes.set_xticks(shown, [f"{count:,}" for count in shown])
    axes.minorticks_off()
    logarithmic(axes.yaxis, (1,))
    plain(axes)
    axes.margins(x=0.05)
    axes.tick_params(labelsize=8)

"""Differences with their intervals, and costs side by side."""

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
)
from fourierformer.results.statistics import Difference

Dots = dict[str, dict[str, float]]  # kind: name: value


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


def time_chart(values: Dots, name: str, title: str, x_label: str) -> Picture:
    """A line for each name, a dot of one colour for each kind."""
    names = list(dict.fromkeys(who for kind in values.values() for who in kind))
    return dot_chart([("", x_label, values)], names, name, title)


def dot_chart(
    panels: list[tuple[str, str, Dots]], names: list[str], name: str, title: str, peer: str = "", description: str = ""
) -> Picture:
    """Panels (heading, label of the x axis, dots) with the same lines. A thin rule marks each dot of `peer`.

    The scale is logarithmic, since costs differ by powers of ten, and has no zero: hence dots and no bars.
    """
    from matplotlib.figure import Figure

    many = len(names) > 20
    line, dot, letters = (0.17, 4, 7) if many else (0.32, 6, 9)
    width = 3.6 if len(panels) == 1 else 1.4 + 2.1 * len(panels)
    figure = Figure(figsize=(width, 0.8 + line * len(names)), layout="constrained")
    kinds = list(dict.fromkeys(kind for _, _, dots in panels for kind in dots))
    keys = {kind: Key(series_colour(i), kind, point="disc") for i, kind in enumerate(kinds)}
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (heading, x_label, dots) in zip(all_axes, panels, strict=True):
        plain(axes)
        drawn = [value for values in dots.values() for value in values.values()]
        axes.set_xscale("log")
        logarithmic(axes.xaxis, (1,) if drawn and max(drawn) > 100 * min(drawn) else (1, 2, 5))
        axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
        axes.set_title(heading, fontsize=9, color=INK.fixed)
        axes.set_xlabel(x_label, fontsize=9, color=INK.fixed)
        for kind, values in dots.items():
            look = {"color": keys[kind].colour.fixed, "linestyle": "none", "marker": "o", "markersize": dot}
            axes.plot(list(values.values()), [names.index(who) for who in values], **look)
            if peer in values:
                rule = {"color": keys[kind].colour.fixed, "linewidth": 0.8, "alpha": 0.5}
                axes.plot([values[peer]] * 2, [-0.5, len(names) - 0.5], **rule)
        axes.tick_params(labelsize=letters)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.margins(x=0.08)
    all_axes[0].set_ylim(len(names) - 0.5, -0.5)  # of all: the first name at the top
    return Picture(figure, name, title, list(keys.values()), description=description)

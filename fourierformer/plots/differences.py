"""Differences to a baseline with their intervals: the picture of which is better, and how sure that is."""

from dataclasses import dataclass

from fourierformer.plots.picture import INK, Key, Picture, new_figure, series_colour


@dataclass(frozen=True)
class Difference:
    label: str
    mean: float
    half_width: float | None  # of the 95 % interval; None for a single seed


def difference_chart(differences: list[Difference], name: str, title: str, axis: str, caption: str = "") -> Picture:
    """A line per configuration, the baseline at 0. What the interval's colour says: whether it holds 0."""
    figure, axes = new_figure(axis, "", (5.0, 0.9 + 0.28 * len(differences)))
    clear, unclear, single = series_colour(0), series_colour(1), INK
    used = []
    for line, found in enumerate(differences):
        if found.half_width is None:
            colour = single
            axes.plot(found.mean, line, "o", markersize=4, markerfacecolor="none", color=colour.fixed)
        else:
            colour = unclear if abs(found.mean) <= found.half_width else clear
            look = {"color": colour.fixed, "capsize": 3, "elinewidth": 1.6, "markersize": 4}
            axes.errorbar(found.mean, line, xerr=found.half_width, fmt="o", **look)
        used.append(colour)
    axes.axvline(0, color=INK.fixed, linewidth=0.8, alpha=0.4)
    axes.set_yticks(range(len(differences)), [found.label for found in differences], color=INK.fixed, fontsize=8)
    axes.set_ylim(len(differences) - 0.5, -0.5)
    axes.margins(x=0.06)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    texts = {clear: "95 % interval without 0", unclear: "95 % interval that holds 0", single: "one seed: no interval"}
    return Picture(figure, name, title, [Key(c, text) for c, text in texts.items() if c in used], caption)

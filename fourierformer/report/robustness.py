"""The metric of trained runs against the strength of an attack."""

from fourierformer.report.picture import WIDE, Key, Picture, logarithmic, new_panels, series_colour, series_style
from fourierformer.tasks import Metric

Points = list[tuple[float, float]]  # (level, value)


def robustness_chart(panels: dict[str, dict[str, Points]], kind: Metric, x_label: str) -> Picture:
    """Draw a panel for each attack, with a line for each run; level 0 is the clean number."""
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    keys = {name: Key(series_colour(number), name, series_style(number)) for number, name in enumerate(names)}
    figure, grid = new_panels(list(panels), x_label, kind.axis, (WIDE[0] * max(1, 0.8 * len(panels)), WIDE[1]))
    for axes, lines in zip(grid, panels.values(), strict=True):
        for name, points in lines.items():
            look = {"color": keys[name].colour.fixed, "linestyle": keys[name].style, "linewidth": 1.6}
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **look)
        axes.margins(x=0.04)
        if kind.logarithmic:
            axes.set_yscale("log")
            logarithmic(axes.yaxis)
    return Picture(figure, "robustness", f"{kind.name} under attack", list(keys.values()))

"""What runs log over their steps: a metric of several configurations, a diagnostic of every layer."""

import numpy as np

from fourierformer.plots.picture import (
    DOTTED,
    INK,
    SERIES,
    SMALL,
    STYLES,
    Key,
    Picture,
    layer_colour,
    logarithmic,
    new_figure,
    series_colour,
    whole_numbers,
)
from fourierformer.results.curves import Curve
from fourierformer.results.metrics import Metric

UNFINISHED_ALPHA = 0.55


def comparison_chart(curves: list[Curve], name: str, title: str, kind: Metric, caption: str = "") -> Picture:
    """Mean lines with the range over seeds; runs that did not complete are dotted."""
    figure, axes = new_figure("step", kind.axis)
    if kind.logarithmic:
        axes.set_yscale("log")
        logarithmic(axes.yaxis)
    whole_numbers(axes.xaxis)
    for curve in curves:
        draw_curve(axes, curve)
    _skip_the_beginning(axes, curves, kind)
    return Picture(figure, name, title, curve_keys(curves), caption)


def diagnostic_chart(curves: list[Curve], name: str, title: str, axis: str, caption: str = "") -> Picture:
    """One line per layer, coloured by depth."""
    figure, axes = new_figure("step", axis, SMALL)
    whole_numbers(axes.xaxis)
    keys = [Key(layer_colour(i, len(curves)), f"layer {int(curve.label)}") for i, curve in enumerate(curves)]
    for curve, key in zip(curves, keys, strict=True):
        axes.plot(curve.steps, curve.middle, color=key.colour.fixed, linewidth=1.3, **_markers(curve))
    return Picture(figure, name, title, keys, caption)


def draw_curve(axes, curve: Curve) -> None:
    colour = series_colour(curve.place[0]).fixed
    if curve.seeds > 1:
        axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    style, width, alpha = (_style(curve.place), 1.6, 1) if curve.finished else (DOTTED, 1.1, UNFINISHED_ALPHA)
    line = {"color": colour, "linestyle": style, "linewidth": width, "alpha": alpha}
    axes.plot(curve.steps, curve.middle, solid_capstyle="round", **line, **_markers(curve))


def curve_keys(curves: list[Curve]) -> list[Key]:
    places = {curve.place: curve.label for curve in curves}
    keys = [Key(series_colour(place[0]), label, _style(place)) for place, label in sorted(places.items())]
    if all(curve.finished for curve in curves):
        return keys
    return [*keys, Key(INK, "run that did not complete", DOTTED)]


def _skip_the_beginning(axes, curves: list[Curve], kind: Metric) -> None:
    """At first a loss falls and an accuracy rises so far that it would flatten all that follows: the scale fits the
    rest.

    A run that diverged may leave the frame too, it must not set the scale.
    """
    shown = [curve for curve in curves if curve.finished] or curves
    log, begin = kind.logarithmic, kind.skipped * max(curve.steps[-1] for curve in shown)
    values = np.concatenate([band[curve.steps >= begin] for curve in shown for band in (curve.low, curve.high)])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values) or not np.ptp(values):
        return
    low, high = (np.log(values.min()), np.log(values.max())) if log else (values.min(), values.max())
    limits = np.array([low - 0.05 * (high - low), high + 0.05 * (high - low)])
    axes.set_ylim(*(np.exp(limits) if log else limits))


def _markers(curve: Curve) -> dict:
    """A curve of few points shows them: a line between 3 evaluations should not look like a measurement everywhere."""
    return {"marker": "o", "markersize": 3 if len(curve.steps) > 1 else 5} if len(curve.steps) <= 20 else {}


def _style(place: tuple[int, int]) -> tuple:
    """Where the colours run out they come again with the next line style."""
    return STYLES[(place[1] + place[0] // len(SERIES)) % len(STYLES)]

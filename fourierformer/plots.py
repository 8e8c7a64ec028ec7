"""Curves as inline SVG that takes its colours from the page, so that one picture is readable on white and on black.

matplotlib writes fixed colours; they are exchanged for CSS afterwards: ink for `currentColor`, a series for
`var(--series-N)` with the fixed colour as its fallback. No name from a run enters a picture: legends are HTML.
"""

import io
import re
from dataclasses import dataclass
from html import escape

import numpy as np

from fourierformer.results.curves import Curve
from fourierformer.results.metrics import Metric

INK = "#0a0b0c"  # a colour nothing else uses: found again in the SVG and exchanged
# Okabe and Ito's palette, safe for colour-blind readers, light members darkened; the page has a dark set
SERIES = ("#0072b2", "#d55e00", "#00805f", "#a8538b", "#8a6800", "#3b7fa8")
STYLES = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
UNFINISHED_ALPHA = 0.55


@dataclass(frozen=True)
class Key:
    """One legend entry of a chart: an HTML colour, a dash pattern for the sample line, the text."""

    colour: str
    dashes: str
    label: str


def series_colour(place: int) -> str:
    return f"var(--series-{place % len(SERIES)}, {SERIES[place % len(SERIES)]})"


def layer_colour(place: int, count: int) -> str:
    """From the first series colour (first layer) to the second (last layer), mixed by the browser."""
    share = round(100 * place / max(count - 1, 1))
    return f"color-mix(in oklab, {series_colour(1)} {share}%, {series_colour(0)})"


def legend(curves: list[Curve]) -> list[Key]:
    places = {curve.place: curve.label for curve in curves}
    keys = [Key(series_colour(place[0]), _dashes(place), label) for place, label in sorted(places.items())]
    return (
        keys
        if all(curve.finished for curve in curves)
        else [*keys, Key("currentColor", "1 3", "run that did not complete")]
    )


def layer_legend(curves: list[Curve]) -> list[Key]:
    return [Key(layer_colour(i, len(curves)), "", f"layer {int(curve.label)}") for i, curve in enumerate(curves)]


def comparison_chart(curves: list[Curve], name: str, title: str, kind: Metric) -> str:
    """Mean lines with the range over seeds; runs that did not complete are dotted. `name` is unique on its page."""
    figure, axes = _figure(kind.axis, kind.logarithmic)
    for curve in curves:
        colour = SERIES[curve.place[0] % len(SERIES)]
        if curve.seeds > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        style = (
            {"linestyle": _style(curve.place), "linewidth": 1.6}
            if curve.finished
            else {"linestyle": (0, (1, 1.5)), "linewidth": 1.1}
        )
        alpha = 1 if curve.finished else UNFINISHED_ALPHA
        axes.plot(
            curve.steps, curve.middle, color=colour, alpha=alpha, solid_capstyle="round", **_markers(curve), **style
        )
    _skip_the_beginning(axes, curves, kind)
    return _svg(figure, name, title, {colour: series_colour(i) for i, colour in enumerate(SERIES)})


def radius_chart(curves: list[Curve], name: str, title: str) -> str:
    """One line per layer, coloured by depth."""
    figure, axes = _figure("radius R", False)
    stand_ins = {f"#0{i:02x}a0b": layer_colour(i, len(curves)) for i in range(len(curves))}
    for curve, colour in zip(curves, stand_ins, strict=True):
        axes.plot(curve.steps, curve.middle, color=colour, linewidth=1.3, **_markers(curve))
    return _svg(figure, name, title, stand_ins)


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


def _dashes(place: tuple[int, int]) -> str:
    return " ".join(str(2 * length) for length in _style(place)[1])


def _figure(y_label: str, log: bool):
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    with matplotlib.rc_context({"font.size": 9, "axes.labelsize": 9}):
        figure = Figure(figsize=(5.0, 3.1), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel("step", color=INK)
        axes.set_ylabel(y_label, color=INK)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color=INK, alpha=0.14, linewidth=0.6)
    axes.tick_params(which="both", colors=INK, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=INK, alpha=0.4, linewidth=0.8)
    axes.margins(x=0.01)
    return figure, axes


def _svg(figure, name: str, title: str, colours: dict[str, str]) -> str:
    import matplotlib

    buffer = io.StringIO()
    # text stays text (selectable, in the page's font); the salt makes the file the same every time
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML knows SVG's names without them
    # several charts share a page, and every one of them numbers its parts from 1
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    for fixed, css in {INK: "currentColor", **colours}.items():
        svg = svg.replace(fixed, css)
    box = re.search(r'viewBox="[^"]*"', svg)[0]
    head = f'<svg role="img" aria-labelledby="{name}-title" {box}><title id="{name}-title">{escape(title)}</title>'
    return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)

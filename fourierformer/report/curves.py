"""Curves of logged numbers over steps and over layers: averaged over seeds, thinned, drawn.

From a row of the comparison to a chart: `metric_curves`, `time_curves` and `comparison_chart`, `diagnostic_curves` and
`diagnostic_chart`, `layer_curves` and `layer_chart`.
"""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fourierformer.report.picture import (
    DOTTED,
    FINISHED,
    INK,
    SERIES,
    SOLID,
    Key,
    Picture,
    in_turn,
    layer_colour,
    logarithmic,
    new_figure,
    panel_grid,
    series_colour,
    whole_numbers,
)
from fourierformer.results.comparison import Row
from fourierformer.results.labels import full_label
from fourierformer.results.metrics import metrics
from fourierformer.results.runs import Run
from fourierformer.tasks import Metric

STRETCHES = 150  # a chart is some 500 pixels wide: more points than this only show noise
LARGEST = 1e9  # a loss or perplexity beyond this belongs to a diverged run and would flatten every other curve
UNFINISHED_ALPHA = 0.55
ACROSS = 4  # panels in a line of the page
TITLE_LETTERS = 32  # in a line of a panel's title
Look = tuple[int, int]  # numbers of a colour and of a line style


@dataclass(frozen=True)
class Curve:
    """`middle` is the mean over seeds, `low` and `high` the range; NaN is a gap. `steps` may be layers or seconds."""

    label: str
    steps: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int
    look: Look = (0, 0)
    finished: bool = True


def metric_curves(rows: list[Row], key: str) -> tuple[list[Curve], int]:
    """A curve per row over its completed seeds, one per run that did not complete; steps per point, 0 if all show.

    A run that died is never averaged in: where it ends, the mean would jump.
    """
    width = _stretch([run for row in rows for run in (*row.runs, *row.others)], key)
    curves = []
    for row, look in zip(rows, _looks(rows), strict=True):
        label = full_label(row, rows)
        curves += _over_seeds(label, row.runs, key, width, look)
        for run in row.others:
            curves += _over_seeds(label, [run], key, width, look, finished=False)
    return curves, width


def time_curves(rows: list[Row], key: str) -> list[Curve]:
    """The curves of evaluations over seconds of training instead of steps, of completed runs that logged them; the
    time of a point is the mean over seeds."""
    curves = []
    for row, look in zip(rows, _looks(rows), strict=True):
        for curve in _over_seeds(full_label(row, rows), row.runs, key, 0, look):
            clocks = [dict(zip(*run.series("seconds"), strict=True)) for run in row.runs]
            times = np.mean([[clock.get(step, np.nan) for step in curve.steps] for clock in clocks], axis=0)
            if np.isfinite(times).all():
                curves.append(replace(curve, steps=times))
    return curves


def diagnostic_curves(row: Row, name: str) -> list[Curve]:
    """One curve per layer, the mean over completed seeds (over the only run there is, if none completed)."""
    runs, of_layer = row.runs or row.others[:1], re.compile(rf"{name}/\d+")
    keys = sorted({key for run in runs for values in run.metrics for key in values if of_layer.fullmatch(key)})
    layers = (_over_seeds(key.removeprefix(f"{name}/"), runs, key, _stretch(runs, key), (0, 0)) for key in keys)
    return [curve for curves in layers for curve in curves]


def layer_curves(rows: list[Row], split: str, key: str) -> list[Curve]:
    """A curve per row over its completed seeds: numbers of scripts/head_redundancy.py against the layer."""
    curves = []
    for row, look in zip(rows, _looks(rows), strict=True):
        layers = [run.head_layers.get(split, []) for run in row.runs]
        series = [{float(i): layer[key] for i, layer in enumerate(of_run) if key in layer} for of_run in layers]
        curves += _common([values for values in series if values], full_label(row, rows), look)
    return curves


def validation_metric(rows: list[Row], primary: str) -> str:
    """Runs log the primary metric of the validation split; one that has only the loss still has a curve."""
    runs = [run for row in rows for run in (*row.runs, *row.others)]
    keys = [primary] if primary else metrics()
    return next((key for key in keys if any(run.series(f"valid_{key}")[0] for run in runs)), "loss")


def _looks(rows: list[Row]) -> list[Look]:
    """One colour per attention, line styles tell the configurations of one attention apart; where the styles do not
    suffice for that, one colour per row."""
    attentions = list(dict.fromkeys(row.attention for row in rows))
    counts = dict.fromkeys(attentions, -1)
    looks = []
    for row in rows:
        counts[row.attention] += 1
        looks.append((attentions.index(row.attention), counts[row.attention]))
    drawn = {(colour % len(SERIES), _style((colour, style))) for colour, style in looks}
    return looks if len(drawn) == len(rows) else [(i, 0) for i in range(len(rows))]


def _stretch(runs: Iterable[Run], key: str) -> int:
    """The steps per point; 0 where every logged step can be shown."""
    series = [run.series(key)[0] for run in runs]
    points, last = max((len(steps) for steps in series), default=0), max((max(s, default=0) for s in series), default=0)
    return 0 if points <= STRETCHES else -(-last // STRETCHES)


def _over_seeds(label: str, runs: list[Run], key: str, width: int, look: Look, finished: bool = True) -> list[Curve]:
    series = [values for run in runs if (values := _thinned(*run.series(key), width))]
    return _common(series, label, look, finished)


def _common(series: list[dict[float, float]], label: str, look: Look, finished: bool = True) -> list[Curve]:
    """[the curve], or [] where no run has values. Only steps every seed has: a mean over a changing set jumps."""
    steps = np.array(sorted(set.intersection(*map(set, series)) if series else ()))
    if not len(steps):
        return []
    values = np.array([[of_run[step] for step in steps] for of_run in series])
    values[~(np.abs(values) < LARGEST)] = np.nan
    return [Curve(label, steps, values.mean(0), values.min(0), values.max(0), len(series), look, finished)]


def _thinned(steps: list[int], values: list[float], width: int) -> dict[float, float]:
    """Values by step, or means by the middle of each stretch of `width` steps. A value that is not finite is a gap."""
    if not width:
        return dict(zip(steps, values, strict=True))
    stretches: dict[float, list[float]] = {}
    whole = max(max(steps, default=0) // width, 1)
    for step, value in zip(steps, values, strict=True):
        # steps count from 1: stretch 0 holds 1..width; what remains after the last whole stretch joins it
        stretch = min(max(step - 1, 0) // width, whole - 1)
        stretches.setdefault((stretch + 0.5) * width, []).append(value)
    return {middle: sum(stretch) / len(stretch) for middle, stretch in stretches.items()}


def comparison_chart(
    curves: list[Curve], name: str, title: str, kind: Metric, caption: str = "", against: str = "step"
) -> Picture:
    """Mean lines with the range over seeds; runs that did not complete are dotted. More than six lines would only be a
    tangle: each gets a panel, with the first one behind it."""
    if len({curve.look for curve in curves}) > len(SERIES):
        return _panels_chart(curves, name, title, kind, caption, against)
    figure, axes = new_figure(against, kind.axis)
    _scale(axes, kind, against)
    for curve in curves:
        _draw(axes, curve)
    _skip_the_beginning(axes, curves, kind)
    solid = [curve.finished and _style(curve.look) == SOLID for curve in curves]
    in_turn(line for line, is_solid in zip(axes.lines, solid, strict=True) if is_solid)
    return Picture(figure, name, title, _keys(curves), caption)


def _panels_chart(curves: list[Curve], name: str, title: str, kind: Metric, caption: str, against: str) -> Picture:
    """A panel for every line but the first, which stands behind each of them in ink; all on one scale."""
    by_look: dict[Look, list[Curve]] = {}
    for curve in curves:
        by_look.setdefault(curve.look, []).append(curve)
    (first, *_), *others = by_look.values()
    figure, panels = panel_grid(len(others), ACROSS, against, kind.axis)
    for axes, own in zip(panels, others, strict=True):
        _name_panel(axes, own[0].label)
        _scale(axes, kind, against)
        style = SOLID if first.finished else DOTTED
        axes.plot(first.steps, first.middle, color=INK.fixed, linestyle=style, linewidth=0.9, alpha=0.55)
        for curve in own:
            _draw(axes, replace(curve, look=(0, 0)))
    _skip_the_beginning(panels[0], curves, kind)  # the scale is shared
    keys = [Key(INK, first.label), Key(series_colour(0), "the attention named above each panel")]
    keys += _unfinished_key([first, *(curve for own in others for curve in own)])
    return Picture(figure, name, title, keys, caption, wide=True)


def _name_panel(axes, label: str) -> None:
    lines = textwrap.fill(label, TITLE_LETTERS, break_long_words=False, break_on_hyphens=False)
    axes.set_title(lines, fontsize=8, color=INK.fixed, parse_math=False)


def _scale(axes, kind: Metric, against: str) -> None:
    if kind.logarithmic:
        axes.set_yscale("log")
        logarithmic(axes.yaxis)
    if against == "step":  # a time of training has as many decimals as it needs
        whole_numbers(axes.xaxis)


def layer_chart(curves: list[Curve], name: str, title: str, quantity: str, caption: str = "") -> Picture:
    """Draw curves against depth, layers counted from 0."""
    figure, axes = new_figure("layer", quantity)
    whole_numbers(axes.xaxis)
    axes.margins(x=0.04)
    for curve in curves:
        _draw(axes, curve)
    return Picture(figure, name, title, _keys(curves), caption)


def diagnostic_chart(
    panels: dict[str, list[Curve]], name: str, title: str, axis: str, caption: str = "", most: float = np.inf
) -> Picture:
    """Draw a panel for each attention with a line per layer, coloured by depth, on one scale. `most`: the largest value
    that there can be."""
    several = len(panels) > 1
    layers = sorted({int(curve.label) for curves in panels.values() for curve in curves})  # not all of a hybrid
    keys = {i: Key(layer_colour(i, layers[-1] + 1), f"layer {i}") for i in layers}
    figure, grid = panel_grid(len(panels), min(len(panels), ACROSS), "step", axis) if several else _alone("step", axis)
    for axes, (label, curves) in zip(grid, panels.items(), strict=True):
        _name_panel(axes, label)
        whole_numbers(axes.xaxis)
        for curve in curves:
            colour = keys[int(curve.label)].colour.fixed
            axes.plot(curve.steps, curve.middle, color=colour, linewidth=1.3, **_markers(curve))
    _widen(grid[0], most)
    for axes in grid:
        in_turn(axes.lines)
    return Picture(figure, name, title, list(keys.values()), caption, wide=several)


def _alone(x_label: str, y_label: str):
    figure, axes = new_figure(x_label, y_label)
    return figure, [axes]


def _widen(axes, most: float) -> None:
    """Of values that agree to many digits the labels would be 1e-7 + 0.999: a range of at least two per cent. No label
    above `most`, which only half a line passes."""
    low, high = axes.get_ylim()
    middle, half = (low + high) / 2, max((high - low) / 2, 0.01 * max(abs(low), abs(high)))
    too_high = max(0.0, middle + half - most)
    low, high = middle - half - too_high, middle + half - too_high
    axes.set_ylim(low, high + (0.02 * (high - low) if too_high else 0.0))


def _draw(axes, curve: Curve) -> None:
    colour = series_colour(curve.look[0]).fixed
    if curve.seeds > 1:
        axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    style, width, alpha = (_style(curve.look), 1.6, 1) if curve.finished else (DOTTED, 1.1, UNFINISHED_ALPHA)
    line = {"color": colour, "linestyle": style, "linewidth": width, "alpha": alpha}
    axes.plot(curve.steps, curve.middle, solid_capstyle="round", **line, **_markers(curve))


def _keys(curves: list[Curve]) -> list[Key]:
    labels = {curve.look: curve.label for curve in curves}
    keys = [Key(series_colour(look[0]), label, _style(look)) for look, label in sorted(labels.items())]
    return [*keys, *_unfinished_key(curves)]


def _unfinished_key(curves: Iterable[Curve]) -> list[Key]:
    return [] if all(curve.finished for curve in curves) else [Key(INK, "run that did not complete", DOTTED)]


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
    """Mark the points of a curve that has few: a line between 3 evaluations is not measured in between."""
    return {"marker": "o", "markersize": 3 if len(curve.steps) > 1 else 5} if len(curve.steps) <= 20 else {}


def _style(look: Look) -> tuple:
    """The line style of a curve; after the last colour the next line style begins."""
    return FINISHED[(look[1] + look[0] // len(SERIES)) % len(FINISHED)]

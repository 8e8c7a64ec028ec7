"""Logged metrics as curves: averaged over seeds, thinned where there are more steps than a page can show."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fourierformer.results.comparison import Row, row_label
from fourierformer.results.metrics import metrics
from fourierformer.results.runs import Run

STRETCHES = 150  # a chart is some 500 pixels wide: more points than this only show noise
LARGEST = 1e9  # a loss or perplexity beyond this belongs to a diverged run and would flatten every other curve


@dataclass(frozen=True)
class Curve:
    """`middle` is the mean over seeds, `low` and `high` the range; NaN is a gap. `place` is (colour, style)."""

    label: str
    steps: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int
    place: tuple[int, int] = (0, 0)
    finished: bool = True


def metric_curves(rows: list[Row], key: str) -> tuple[list[Curve], int]:
    """A curve per row over its completed seeds, one per run that did not complete; steps per point, 0 if all show.

    A run that died is never averaged in: where it ends, the mean would jump.
    """
    width = _stretch([run for row in rows for run in (*row.runs, *row.others)], key)
    curves = []
    for row, place in zip(rows, _places(rows), strict=True):
        label = _label(row, rows)
        curves += _over_seeds(label, row.runs, key, width, place, finished=True)
        for run in row.others:
            curves += _over_seeds(label, [run], key, width, place, finished=False)
    return curves, width


def diagnostic_curves(row: Row, name: str) -> list[Curve]:
    """One curve per layer, the mean over completed seeds (over the only run there is, if none completed)."""
    runs, of_layer = row.runs or row.others[:1], re.compile(rf"{name}/\d+")
    keys = sorted({key for run in runs for values in run.metrics for key in values if of_layer.fullmatch(key)})
    curves = (_over_seeds(key.removeprefix(f"{name}/"), runs, key, _stretch(runs, key), (0, 0), True) for key in keys)
    return [curve for found in curves for curve in found]


def layer_curves(rows: list[Row], split: str, key: str) -> list[Curve]:
    """A curve per row over its completed seeds: what scripts/head_redundancy.py found, against the layer."""
    curves = []
    for row, place in zip(rows, _places(rows), strict=True):
        found = [run.head_layers.get(split, []) for run in row.runs]
        series: list[dict[float, float]] = [
            {i: layer[key] for i, layer in enumerate(layers) if key in layer} for layers in found
        ]
        curves += _common([values for values in series if values], _label(row, rows), place, finished=True)
    return curves


def validation_metric(rows: list[Row], primary: str) -> str:
    """Runs log the primary metric of the validation split; one that has only the loss still has a curve."""
    runs = [run for row in rows for run in (*row.runs, *row.others)]
    keys = [primary] if primary else metrics()
    return next((key for key in keys if any(run.series(f"valid_{key}")[0] for run in runs)), "loss")


def _places(rows: list[Row]) -> list[tuple[int, int]]:
    """(colour, style): one colour per attention, line styles tell the configurations of one attention apart."""
    attentions = list(dict.fromkeys(row.attention for row in rows))
    seen: dict[str, int] = {}
    places = []
    for row in rows:
        places.append((attentions.index(row.attention), seen.get(row.attention, 0)))
        seen[row.attention] = seen.get(row.attention, 0) + 1
    return places


def _label(row: Row, rows: list[Row]) -> str:
    several = len({other.model for other in rows}) > 1
    return f"{row.model} {row_label(row, rows)}" if several else row_label(row, rows)


def _stretch(runs: Iterable[Run], key: str) -> int:
    """Steps per point: 0 where every logged step can be shown."""
    series = [run.series(key)[0] for run in runs]
    points, last = max((len(steps) for steps in series), default=0), max((max(s, default=0) for s in series), default=0)
    return 0 if points <= STRETCHES else -(-last // STRETCHES)


def _over_seeds(label: str, runs: list[Run], key: str, width: int, place, finished: bool) -> list[Curve]:
    series = [found for run in runs if (found := _thinned(*run.series(key), width))]
    return _common(series, label, place, finished)


def _common(series: list[dict[float, float]], label: str, place: tuple[int, int], finished: bool) -> list[Curve]:
    """[the curve], or [] where no run has values. Only steps every seed has: a mean over a changing set jumps."""
    steps = np.array(sorted(set.intersection(*map(set, series)) if series else ()))
    if not len(steps):
        return []
    values = np.array([[found[step] for step in steps] for found in series])
    values[~(np.abs(values) < LARGEST)] = np.nan
    middle, low, high = values.mean(0), values.min(0), values.max(0)
    return [Curve(label, steps, middle, low, high, len(series), place, finished)]


def _thinned(steps: list[int], values: list[float], width: int) -> dict[float, float]:
    """Value by step, or mean by the middle of each stretch of `width` steps. A value that is not finite makes a gap."""
    if not width:
        return dict(zip(steps, values, strict=True))
    stretches: dict[float, list[float]] = {}
    whole = max(max(steps, default=0) // width, 1)
    for step, value in zip(steps, values, strict=True):
        # steps count from 1: stretch 0 holds 1..width; what remains after the last whole stretch joins it
        stretch = min(max(step - 1, 0) // width, whole - 1)
        stretches.setdefault((stretch + 0.5) * width, []).append(value)
    return {middle: sum(found) / len(found) for middle, found in stretches.items()}

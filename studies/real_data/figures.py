"""The pictures of this study: by how much each attention differs from softmax, its validation against tokens and
against time, and the attended share of its layers."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fourierformer.files import read_csv
from fourierformer.report.curves import Curve, metric_curves
from fourierformer.report.picture import (
    INK,
    SOLID,
    Colour,
    Key,
    Picture,
    logarithmic,
    plain,
    series_colour,
    series_style,
)
from fourierformer.results.baseline import BASELINE
from fourierformer.results.comparison import Row, comparison
from fourierformer.results.labels import full_label
from fourierformer.results.measured import read_measured
from fourierformer.results.metrics import metric
from fourierformer.results.statistics import compare
from fourierformer.tasks import Column, Metric
from studies.real_data.hypotheses import EVIDENCE, HERE, Configuration, on_common_seeds
from studies.real_data.layers import SHARE, layer_cells

SIZE = (9.6, 6.2)  # inches
SMALLEST_SHARE = 1e-40  # a share of 0 is drawn there
LINEAR = 10  # up to this difference the scale is linear
NO_EPS = Configuration("fourier", {"eps": 0})  # alone has a variant that is not called as its attention:
NO_EPS_VARIANT = "fourier_no_eps"
FIRST_GROUP = (BASELINE, "fourier_matched", "gaussian", "fourier")  # of the plan; in the order of the results
Line = tuple[Colour, tuple]  # colour and line style


@dataclass(frozen=True)
class Evidence:
    """The runs of one file, and which of their numbers the plan names."""

    name: str
    rows: list[Row]
    column: Column
    speeds: dict[str, float]  # of a variant of the plan: its samples per second / softmax's

    @property
    def kind(self) -> Metric:
        return metric(self.rows[0].primary)

    def speed(self, row: Row) -> float | None:
        """None where it was not timed."""
        if row.attention == BASELINE:
            return 1.0
        return self.speeds.get(NO_EPS_VARIANT if NO_EPS.is_of(row) else row.attention)

    def looks(self) -> dict[str, Line]:
        """Ink for softmax."""
        labels = {full_label(row, self.rows): row.attention for row in self.rows}
        others = [label for label, attention in labels.items() if attention != BASELINE]
        looks = {label: (series_colour(i), series_style(i)) for i, label in enumerate(others)}
        return {label: looks.get(label, (INK, SOLID)) for label in labels}


def save_evidence(folder: Path) -> list[Path]:
    """<name>.svg and <name>.png of every file of the plan that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for evidence in read_evidence() for path in picture_of(evidence).save(folder)]


def read_evidence(measured: Path = HERE) -> list[Evidence]:
    found = []
    for name, column in EVIDENCE.items():
        path = measured / f"{name}.csv"
        if path.is_file():
            rows = sorted(comparison(read_measured(path)), key=_place)
            found.append(Evidence(name, rows, column, _speeds(measured / f"{name}_time.csv")))
    return found


def _place(row: Row) -> int:
    """The first group comes first, so that its attentions have the same colours in every picture."""
    is_first = row.attention in FIRST_GROUP and not NO_EPS.is_of(row)
    return FIRST_GROUP.index(row.attention) if is_first else len(FIRST_GROUP)


def _speeds(path: Path) -> dict[str, float]:
    """{"fourier": 0.86}: what benchmarks.training measured of variant=evidence/fourier, or of attention=fourier."""
    rows = read_csv(path).rows if path.is_file() else []
    return {re.split("[/=]", row["overrides"])[-1]: float(row["speed_ratio"]) for row in rows}


def picture_of(evidence: Evidence) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    looks = evidence.looks()
    for axes, draw in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        plain(axes)
        draw(axes, evidence, looks)
        axes.tick_params(labelsize=8)
        axes.title.set(fontsize=9, color=INK.fixed)
        axes.xaxis.label.set(fontsize=8, color=INK.fixed)
    keys = [Key(colour, label, style) for label, (colour, style) in looks.items()]
    title = f"{evidence.rows[0].model} on {evidence.rows[0].data}: mean over seeds, band: lowest to highest seed"
    return Picture(figure, evidence.name, title, keys, description=fingerprint(evidence))


def differences(evidence: Evidence) -> list[tuple[str, float, float]]:
    """(attention, difference to softmax, half the 95 % interval, 0 where one seed has none), over common seeds."""
    softmax = next((row.cell(evidence.column) for row in evidence.rows if row.attention == BASELINE), None)
    found = []
    for row in evidence.rows:
        cells = on_common_seeds(row.cell(evidence.column), softmax) if row.attention != BASELINE else None
        difference = compare(*cells) if cells else None
        if difference and difference.mean is not None:
            found.append((full_label(row, evidence.rows), difference.mean, difference.half_width or 0.0))
    return found


def shares(evidence: Evidence) -> dict[str, list[float]]:
    """The attended share of each layer, of every attention that was measured."""
    cells = {full_label(row, evidence.rows): layer_cells(row, SHARE) for row in evidence.rows}
    return {label: [max(cell.mean, SMALLEST_SHARE) for cell in layers] for label, layers in cells.items() if layers}


def fingerprint(evidence: Evidence) -> str:
    """Of the numbers that are drawn. It stands in the committed SVG, so that a test can tell when that is stale."""
    curves, _ = metric_curves(evidence.rows, f"valid_{evidence.kind.key}")
    drawn = [[c.label, *(part.tolist() for part in (c.steps, c.low, c.middle, c.high))] for c in curves]
    samples = [cell.mean for row in evidence.rows if (cell := row.quantity(row.task.unit))]
    text = json.dumps(_rounded([differences(evidence), drawn, samples, shares(evidence), evidence.speeds]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(values):
    """Numbers of six digits: another version of a library may compute the last ones differently."""
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values


def _draw_differences(axes, evidence: Evidence, looks: dict[str, Line]) -> None:
    from matplotlib.ticker import FuncFormatter

    lines = differences(evidence)
    for i, (label, mean, half) in enumerate(lines):
        colour = looks[label][0].fixed
        axes.errorbar(mean, i, xerr=half, fmt="o", color=colour, capsize=3, elinewidth=1.6, markersize=4)
    axes.axvline(0, color=INK.fixed, linewidth=0.8, alpha=0.4)
    farthest = max((abs(mean) + half for _, mean, half in lines), default=0)
    beyond = ""
    if farthest > 5 * LINEAR:  # the small differences would be dots beside 0
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda difference, _: f"{difference:g}"))
        beyond = f"; logarithmic beyond {LINEAR}"
    axes.set_yticks(range(len(lines)), [label for label, *_ in lines])
    axes.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    axes.margins(x=0.08)
    axes.set_xlabel(f"difference in {evidence.kind.axis}")
    axes.set_title(f"{evidence.column[0]} {evidence.kind.axis} minus {BASELINE}'s, 95 % interval{beyond}")


def _draw_against_tokens(axes, evidence: Evidence, looks: dict[str, Line]) -> None:
    row = evidence.rows[0]
    steps, samples = row.quantity("steps"), row.quantity(row.task.unit)
    assert steps is not None  # every summary has both
    assert samples is not None
    _draw_curves(axes, evidence, looks, lambda curve: curve.steps * samples.mean / steps.mean / 1e6)
    axes.set_xlabel(f"millions of {row.task.unit}")
    axes.set_title(f"validation {evidence.kind.axis}")


def _draw_against_time(axes, evidence: Evidence, looks: dict[str, Line]) -> None:
    steps = evidence.rows[0].quantity("steps")
    assert steps is not None  # every summary has it
    speeds = {full_label(row, evidence.rows): evidence.speed(row) for row in evidence.rows}

    timed = any(speed is not None for label, speed in speeds.items() if label != BASELINE)

    def time(curve: Curve):
        speed = speeds[curve.label] if timed else None
        return None if speed is None else curve.steps / steps.mean / speed

    _draw_curves(axes, evidence, looks, time)
    axes.set_xlabel(f"time / time of {BASELINE}'s training")
    axes.set_title(f"validation {evidence.kind.axis} against time{'' if timed else ': not timed yet'}")


def _draw_curves(axes, evidence: Evidence, looks: dict[str, Line], places: Callable) -> None:
    """The first tenth of training would flatten all that follows."""
    curves, _ = metric_curves(evidence.rows, f"valid_{evidence.kind.key}")
    for curve in curves:
        x, (colour, style) = places(curve), looks[curve.label]
        late = curve.steps > evidence.kind.skipped * curve.steps[-1]
        if x is not None:
            axes.fill_between(x[late], curve.low[late], curve.high[late], color=colour.fixed, alpha=0.18, linewidth=0)
            axes.plot(x[late], curve.middle[late], color=colour.fixed, linestyle=style, linewidth=1.4)
    if evidence.kind.logarithmic:
        axes.set_yscale("log")
        logarithmic(axes.yaxis)


def _draw_shares(axes, evidence: Evidence, looks: dict[str, Line]) -> None:
    from matplotlib.ticker import FuncFormatter

    found = shares(evidence)
    for label, layers in found.items():
        colour, style = looks[label]
        axes.plot(range(len(layers)), layers, "o", linestyle=style, color=colour.fixed, markersize=4, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xticks(range(max(map(len, found.values()), default=1)))
    axes.margins(x=0.05)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}".replace("e-0", "e-")))
    axes.set_xlabel("layer")
    axes.set_title("attended share of each layer: sum w / (eps + sum w)")


PANELS = (_draw_differences, _draw_against_tokens, _draw_against_time, _draw_shares)

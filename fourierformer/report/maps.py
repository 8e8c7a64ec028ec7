"""Attention maps of trained runs beside each other: softmax and a Fourier attention on the same sequence."""

import contextlib
import sys

from fourierformer.errors import SetupError
from fourierformer.report.picture import Picture
from fourierformer.report.section import Charts
from fourierformer.results.comparison import Row
from fourierformer.results.labels import row_label
from fourierformer.results.runs import Run

TITLE = "What each head attends to"


def map_charts(rows: list[Row], anchor: str) -> list[Charts]:
    """Empty unless a softmax run and another of the same model and length have their checkpoints and data here."""
    softmax = next((row for row in rows if row.is_baseline and _trained(row)), None)
    alike = [row for row in rows if softmax and _sequences(row) == _sequences(softmax)]
    rivals = [row for row in alike if row is not softmax and _trained(row)]
    if softmax is None or not rivals:
        return []
    rival = next((row for row in rivals if row.attention.startswith("fourier")), rivals[0])
    try:
        return [Charts([_picture({row_label(row, rows): _trained(row)[0] for row in (softmax, rival)}, anchor)])]
    except SetupError:  # no data here, or an attention without maps
        return []


def _sequences(row: Row) -> list[object]:
    return [row.model, *(row.config.get(f"model.{key}") for key in ("length", "image_size", "patch"))]


def _trained(row: Row) -> list[Run]:
    return [run for run in row.runs if (run.path / "checkpoints").is_dir()]


def _picture(runs: dict[str, Run], anchor: str) -> Picture:
    from fourierformer.analysis.maps import mean_maps  # torch takes seconds to load
    from fourierformer.report.patterns import compared_maps_picture

    with contextlib.redirect_stdout(sys.stderr):  # loading data talks
        maps = {label: mean_maps(run.path, sequences=1) for label, run in runs.items()}
    last = min(len(mean.maps) for mean in maps.values()) - 1
    return compared_maps_picture(maps, sorted({0, last}), f"maps--{anchor}", TITLE)

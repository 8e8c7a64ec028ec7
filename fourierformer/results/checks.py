"""The checks that docs/results.md made after its plan: each of their runs beside the plan's, seed by seed."""

from collections.abc import Iterable
from pathlib import Path

from fourierformer.provenance import MEASURED
from fourierformer.results.comparison import Cell, Row, comparison, differing_values
from fourierformer.results.formats import DASH, Table
from fourierformer.results.hypotheses import EVIDENCE, on_common_seeds, relative, relative_text
from fourierformer.results.measured import read_measured
from fourierformer.results.statistics import compare, difference_text, p_text
from fourierformer.results.tables import title_of

PLANNED, CHECKS = "evidence_lm", "evidence_lm_checks"
COLUMN = EVIDENCE[PLANNED]
# an attention of the checks, and one of the plan that it is compared with
COMPARED = (
    ("fourier_matched", "softmax"),
    ("fourier_matched", "fourier_matched"),
    ("softmax", "softmax"),
    ("softmax", "fourier_matched"),
    ("gaussian", "fourier_matched"),
    ("gaussian", "softmax"),
    ("gaussian", "gaussian"),
)
HEADER = ["comparison", "n", "difference", "relative", "p"]
NOTE = "differences: mean ± 95 % t-interval, paired over the seeds that both have; p of each test by itself"
FILED = "experiment_name"  # tells nothing of what a run computes


def check_table(folder: Path = MEASURED) -> Table | None:
    """The runs of the checks beside those of the plan, as COMPARED says; None before there are any."""
    path = folder / f"{CHECKS}.csv"
    if not path.is_file():
        return None
    planned, rows = (comparison(read_measured(folder / f"{name}.csv")) for name in (PLANNED, CHECKS))
    pairs = [(row, other) for row in rows for other in planned]
    body = [
        _line(row, other, planned)
        for names in COMPARED
        for row, other in pairs
        if (row.attention, other.attention) == names and _cells(row, other)
    ]
    return Table(title_of(rows), rows, HEADER, body, notes=[NOTE])


def _cells(row: Row, other: Row) -> tuple[Cell, Cell] | None:
    return on_common_seeds(row.cell(COLUMN), other.cell(COLUMN))


def _line(row: Row, other: Row, planned: list[Row]) -> list[str]:
    cells = _cells(row, other)
    assert cells is not None  # the caller has looked
    difference = compare(*cells)
    return [
        f"{_label(row, planned)} - {_label(other, [row])}",
        str(cells[0].n),
        difference_text(difference, row.primary) or DASH,
        relative_text(relative(*cells)),
        DASH if difference.p is None else p_text(difference.p),
    ]


def _label(row: Row, others: Iterable[Row]) -> str:
    """The attention; with what tells it from the first of `others` that has the same, be it only the experiment."""
    for other in others:
        if other.attention == row.attention:
            configs = [{key: value for key, value in each.config.items() if key != FILED} for each in (row, other)]
            return f"{row.attention} {differing_values(configs)[0] or f'of {row.experiment}'}"
    return row.attention

"""README's result: what the language runs of docs/results.md say about each attention, best first."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fourierformer.provenance import MEASURED
from fourierformer.results.comparison import HEADS, Cell, Row, comparison, mean_text, row_label
from fourierformer.results.formats import DASH, markdown_grid
from fourierformer.results.hypotheses import EVIDENCE, SOFTMAX, decide, on_common_seeds, relative, relative_text
from fourierformer.results.measured import read_measured
from fourierformer.results.statistics import p_text

NAME = "evidence_lm"
COLUMN = EVIDENCE[NAME]
FILE = f"{NAME}.csv"
HEADER = ("attention", "seeds", "test perplexity", "against softmax", "p", "attended share")


@dataclass(frozen=True)
class Finding:
    """What was measured of one attention."""

    label: str
    row: Row
    perplexity: Cell
    relative: Cell | None  # to softmax, on common seeds; None for softmax itself
    p: float | None  # of the plan's test; None where the plan compares it with another attention than softmax
    attended: float | None  # what tokens get of the weights, a mean over layers; eps takes the rest


def findings(folder: Path = MEASURED) -> list[Finding]:
    rows = comparison(read_measured(folder / FILE))
    measured = [_finding(row, rows) for row in rows if row.cell(COLUMN)]
    return sorted(measured, key=lambda finding: finding.perplexity.mean)


def _finding(row: Row, rows: list[Row]) -> Finding:
    softmax = next((other.cell(COLUMN) for other in rows if SOFTMAX.is_of(other)), None)
    cell, attended = row.cell(COLUMN), row.cell((COLUMN[0], HEADS), "attended_share")
    assert cell is not None  # the caller has looked
    pair = None if SOFTMAX.is_of(row) else on_common_seeds(cell, softmax)
    tested = [d.p for d in decide(rows, COLUMN) if d.hypothesis.second == SOFTMAX and d.hypothesis.first.is_of(row)]
    return Finding(
        row_label(row, rows),
        row,
        cell,
        relative(*pair) if pair else None,
        tested[0] if tested else None,
        attended.mean if attended else None,
    )


def headline_table(found: Iterable[Finding]) -> str:
    return markdown_grid(HEADER, map(_line, found), [True] + [False] * 5)


def _line(finding: Finding) -> tuple[str, ...]:
    return (
        finding.label,
        str(finding.row.n),
        mean_text(finding.perplexity, finding.row.primary),
        relative_text(finding.relative) if finding.relative else DASH,
        DASH if finding.p is None else p_text(finding.p).removeprefix("p ").removeprefix("= "),
        attended_text(finding),
    )


def attended_text(finding: Finding) -> str:
    return DASH if finding.attended is None else f"{100 * finding.attended:.0f} %"

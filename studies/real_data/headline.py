"""The study's result: test perplexity of each attention at each learning rate, in the language runs of this study."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fourierformer.results.comparison import Cell, Row, comparison, mean_text
from fourierformer.results.formats import DASH, markdown_grid
from fourierformer.results.labels import row_label
from fourierformer.results.measured import read_measured
from fourierformer.results.metrics import HEADS
from studies.real_data.checks import CHECKS, COLUMN, PLANNED, rate_of
from studies.real_data.hypotheses import HERE


@dataclass(frozen=True)
class Finding:
    """What was measured of one attention."""

    label: str
    by_rate: dict[float, Row]

    @property
    def best(self) -> Row:
        return min(self.by_rate.values(), key=lambda row: perplexity(row).mean)

    @property
    def attended(self) -> float | None:
        """Attended share at the best rate, a mean over layers."""
        cell = self.best.cell((COLUMN[0], HEADS), "attended_share")
        return cell.mean if cell else None


def findings(folder: Path = HERE) -> list[Finding]:
    """Of the plan's runs and the checks after it, best first. Where both have an attention at a rate, the plan's."""
    by_label: dict[str, dict[float, Row]] = {}
    for name in (PLANNED, CHECKS):
        path = folder / f"{name}.csv"
        rows = [row for row in comparison(read_measured(path)) if row.cell(COLUMN)] if path.is_file() else []
        for row in rows:
            same_rate = [other for other in rows if rate_of(other) == rate_of(row)]
            by_label.setdefault(row_label(row, same_rate), {}).setdefault(rate_of(row), row)
    found = [Finding(label, by_rate) for label, by_rate in by_label.items()]
    return sorted(found, key=lambda finding: perplexity(finding.best).mean)


def rates(found: Iterable[Finding]) -> list[float]:
    return sorted({rate for finding in found for rate in finding.by_rate})


def perplexity(row: Row) -> Cell:
    cell = row.cell(COLUMN)
    assert cell is not None  # `findings` keeps only rows that have one
    return cell


def headline_table(found: list[Finding]) -> str:
    columns = rates(found)
    header = ["attention", *(f"lr {rate:g}" for rate in columns), "attended share"]
    lines = [[f.label, *(_cell_text(f.by_rate.get(rate)) for rate in columns), attended_text(f)] for f in found]
    return markdown_grid(header, lines, [True] + [False] * (len(header) - 1))


def _cell_text(row: Row | None) -> str:
    return f"{mean_text(perplexity(row), row.primary)} ({row.n})" if row else DASH


def attended_text(finding: Finding) -> str:
    return DASH if finding.attended is None else f"{100 * finding.attended:.0f} %"

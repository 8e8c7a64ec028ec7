"""The long form of a table: one line per number with its interval, and what the paper prints in its place."""

import math
from collections.abc import Iterable

from fourierformer.results.comparison import Cell, Row, row_label
from fourierformer.results.layout import DASH, Measure, Table, blocks_of, columns_of, table_groups, title_of
from fourierformer.results.metrics import metric, metric_text
from fourierformer.results.paper import PaperValue, paper_value, scale_lines
from fourierformer.results.remarks import protocol_lines
from fourierformer.results.significance import signed
from fourierformer.results.statistics import NO_CLAIM, half_width, not_finite

HEADER = ["n", "mean", "sd", "95 % interval", "paper", "ours - paper", "status of the paper's"]


def evidence(rows: Iterable[Row]) -> list[Table]:
    """A table for each table of the comparison that has an interval or a number of the paper to show."""
    return [_evidence(group) for group in table_groups(rows) if _has_something(group)]


def evidence_line(cell: Cell | None, key: str, value: PaperValue | None) -> list[str]:
    """The cells under HEADER; a dash for everything that is not there."""
    printed = value.value if value else None
    theirs = DASH if printed is None else metric_text(printed, key)
    status = value.status if value else DASH
    if cell is None:
        return ["0", DASH, DASH, DASH, theirs, DASH, status]
    spread = DASH if cell.sd is None else metric_text(cell.sd, key)
    difference = DASH if printed is None or not math.isfinite(cell.mean) else signed(cell.mean - printed, key)
    return [str(cell.n), metric_text(cell.mean, key), spread, interval_text(cell, key), theirs, difference, status]


def interval_text(cell: Cell, key: str) -> str:
    """[low, high], or in words why there is none."""
    if infinite := not_finite(cell.values):
        return infinite
    width = half_width(cell.values.values())
    if width is None:
        return NO_CLAIM
    return f"[{metric_text(cell.mean - width, key)}, {metric_text(cell.mean + width, key)}]"


def evaluation_text(measure: Measure) -> str:
    (split, protocol), key = measure
    return f"{split} {metric(key).short} {protocol.replace('_', ' ')}"


def _evidence(rows: list[Row]) -> Table:
    several = len({row.model for row in rows}) > 1
    body: list[list[str]] = []
    starts: set[int] = set()
    for row in rows:
        starts |= {len(body)} if body else set()
        names = [*([row.model or DASH] if several else []), row_label(row, rows)]
        for measure in _measures(rows):
            column, key = measure
            cell, value = row.cell(column, key), paper_value(row, column, key)
            if cell or not column[1].startswith("ema"):  # averaged weights are kept only where asked for
                body.append([*names, evaluation_text(measure), *evidence_line(cell, key, value)])
    title = f"{title_of(rows)}: intervals over seeds, and the paper's numbers"
    protocols = protocol_lines(rows, columns_of(rows))
    header = [*(["model"] if several else []), "attention", "evaluation", *HEADER]
    return Table(title, rows[0].primary, rows, header, body, set(), starts, protocols, [], scale_lines(rows))


def _measures(rows: list[Row]) -> list[Measure]:
    return [measure for block in blocks_of(rows) for measure in block]


def _has_something(rows: list[Row]) -> bool:
    printed = any(paper_value(row, *measure) for row in rows for measure in _measures(rows))
    return printed or any(row.n > 1 for row in rows)

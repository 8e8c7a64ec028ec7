"""The one sentence about a table that a reader came for."""

import math

from fourierformer.results import Run, Table
from fourierformer.results.comparison import evaluations, row_label
from fourierformer.results.layout import DASH, columns_of
from fourierformer.results.metrics import change_text, metric, metric_text, task_behind
from fourierformer.results.runs import number
from fourierformer.results.significance import p_text, pairs
from fourierformer.results.statistics import LEVEL, holm
from fourierformer.tasks import Column, Task


def quoted_columns(task: Task) -> list[Column]:
    """The number a paper would quote comes first."""
    return [(split, protocol) for split in ("test", "valid") for protocol in task.quoted]


def headline(table: Table) -> str:
    """Empty where there is nothing to compare."""
    for column in quoted_columns(table.rows[0].task):
        cells = {row_label(row, table.rows): cell.mean for row in table.rows if (cell := row.cell(column))}
        finite = {label: mean for label, mean in cells.items() if math.isfinite(mean)}
        protocols = {protocol for row in table.rows for protocol in row.protocols(column)}
        if len(finite) < 2 or len(protocols) != 1 or len({row.model for row in table.rows}) != 1:
            continue
        return _sentence(table, column, finite)
    return ""


def result_of(run: Run) -> str:
    """The number of one run that a paper would quote."""
    if not run.completed:
        return DASH
    primary = str(run.summary.get("primary"))
    measured = {column: values[primary] for column, values in evaluations(run).items() if primary in values}
    columns = quoted_columns(task_behind(str(run.field("task")), primary))
    column = next((column for column in columns if column in measured), None)
    if column is None:
        return DASH
    value = metric_text(number(measured[column]), primary, unit=True)
    return f"{column[0]} {metric(primary).short} {value} ({_spoken(column)})"


def _sentence(table: Table, column: Column, means: dict[str, float]) -> str:
    kind = metric(table.primary)
    first, second = sorted(means, key=means.__getitem__, reverse=kind.higher_is_better)[:2]
    baseline = "softmax" if "softmax" in means and first != "softmax" else second
    values = [metric_text(means[label], table.primary, unit=True) for label in (first, baseline)]
    what = f"{column[0]} {kind.name} ({_spoken(column)})"
    if values[0] == values[1]:
        return f"No difference in {what}: {first} and {baseline} with {values[0]}."
    change = change_text(means[first], means[baseline], table.primary)
    doubt = _doubt(table, column, first, baseline)
    first_is = "Highest" if kind.higher_is_better else "Lowest"
    return f"{first_is} {what}: {first} with {values[0]}, against {values[1]} for {baseline} ({change}){doubt}."


def _doubt(table: Table, column: Column, first: str, baseline: str) -> str:
    """What the sentence must not be read without: a single seed, or a test that found nothing."""
    if min(row.n for row in table.rows if row_label(row, table.rows) in (first, baseline)) == 1:
        return "; a single seed, so no claim yet"
    found = pairs(table.rows, columns_of(table.rows))
    tested = [(pair, pair.found.p) for pair in found if pair.found.p is not None]
    for (pair, _), p in zip(tested, holm(p for _, p in tested), strict=True):
        if pair.column == column and {row_label(pair.row, table.rows), "softmax"} == {first, baseline}:
            return f"; not a significant difference, {p_text(p)}" if p >= 1 - LEVEL else f"; {p_text(p)}"
    return ""


def _spoken(column: Column) -> str:
    return column[1].replace("_", " ")

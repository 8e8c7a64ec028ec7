"""The long tables, a line per number with its interval: of our runs, and the paper's own tables with ours beside them.

A dash stands for everything that was not run or not printed.
"""

import math
from collections.abc import Iterable

from fourierformer.results.baseline import significance_lines
from fourierformer.results.comparison import Cell, Row
from fourierformer.results.formats import DASH, Table
from fourierformer.results.labels import row_label
from fourierformer.results.metrics import HEADS, metric, metric_text, metrics, protocol_text
from fourierformer.results.paper import TABLES, PaperValue, is_the_papers, paper_value, read_paper, scale_lines
from fourierformer.results.statistics import NO_CLAIM, half_width, not_finite, signed
from fourierformer.results.tables import (
    Measure,
    blocks_of,
    columns_of,
    model_column,
    protocol_lines,
    table_groups,
    title_of,
)

HEADER = ["n", "mean", "sd", "95 % interval", "paper", "ours - paper", "status of the paper's"]
TITLES = {
    "1": "Table 1: WikiText-103 perplexity, 16-layer word language models, mean of 5 seeds in the paper",
    "2": "Table 2: ImageNet-1k accuracy, DeiT-tiny; the paper does not say whether of the last or the best epoch",
    "3": "Table 3: average distance between the heads of a layer, small model, mean and sd over the layers",
}
STATUS = "status: verified = read in a source; derived = computed from such and recalled values; recalled = from memory"
COUNTED = (
    "a run counts here only with the paper's data, length of training and settings; others have tables of their own"
)


def interval_tables(rows: Iterable[Row]) -> list[Table]:
    """A table for each table of the comparison that has an interval or a number of the paper to show."""
    groups = [(group, [measure for block in blocks_of(group) for measure in block]) for group in table_groups(rows)]
    return [_interval_table(group, measures) for group, measures in groups if _has_something(group, measures)]


def _has_something(rows: list[Row], measures: list[Measure]) -> bool:
    printed = any(paper_value(row, *measure) for row in rows for measure in measures)
    return printed or any(row.n > 1 for row in rows)


def _interval_table(rows: list[Row], measures: list[Measure]) -> Table:
    body: list[list[str]] = []
    starts: set[int] = set()
    for row in rows:
        starts |= {len(body)} if body else set()
        names = [*([row.model or DASH] if model_column(rows) else []), row_label(row, rows)]
        for column, key in measures:
            cell, value = row.cell(column, key), paper_value(row, column, key)
            if cell or not column[1].startswith("ema"):  # averaged weights exist only with trainer.ema_decay
                body.append([*names, _evaluation_text((column, key)), *_interval_line(cell, key, value)])
    title = f"{title_of(rows)}: intervals over seeds, and the paper's numbers"
    header = [*model_column(rows), "attention", "evaluation", *HEADER]
    protocols = protocol_lines(rows, columns_of(rows))
    return Table(title, rows, header, body, starts=starts, scale=scale_lines(rows), protocols=protocols)


def _evaluation_text(measure: Measure) -> str:
    column, key = measure
    return f"{column[0]} {metric(key).short} {protocol_text(column)}"


def _interval_line(cell: Cell | None, key: str, value: PaperValue | None) -> list[str]:
    """The cells under HEADER."""
    printed = value.value if value else None
    theirs = DASH if printed is None else metric_text(printed, key)
    status = value.status if value else DASH
    if cell is None:
        return ["0", DASH, DASH, DASH, theirs, DASH, status]
    spread = DASH if cell.sd is None else metric_text(cell.sd, key)
    difference = DASH if printed is None or not math.isfinite(cell.mean) else signed(cell.mean - printed, key)
    return [str(cell.n), metric_text(cell.mean, key), spread, _interval_text(cell, key), theirs, difference, status]


def _interval_text(cell: Cell, key: str) -> str:
    """[low, high], or in words why there is none."""
    if infinite := not_finite(cell):
        return infinite
    width = half_width(cell)
    if width is None:
        return NO_CLAIM
    return f"[{metric_text(cell.mean - width, key)}, {metric_text(cell.mean + width, key)}]"


def paper_tables(rows: Iterable[Row]) -> list[Table]:
    """Tables 1 to 3, then other papers' numbers, a table for each experiment.

    A line per printed number; where a paper leaves the split or the weights open, one for each.
    """
    values = read_paper()
    rows = list(rows)
    of_table = {TITLES[name]: [value for value in values if value.table == name] for name in TABLES}
    for value in values:
        if value.table not in TABLES:
            of_table.setdefault(f"{value.experiment}: published by others for this recipe", []).append(value)
    return [_paper_table(title, printed, rows) for title, printed in of_table.items()]


def _paper_table(title: str, values: list[PaperValue], rows: list[Row]) -> Table:
    body: list[list[str]] = []
    used: list[Row] = []
    doubts: list[str] = []
    for value in values:
        if value.metric not in metrics():  # the gains that the text states are differences of other lines
            continue
        matching = [row for row in rows if is_the_papers(row, value)]
        row = matching[0] if matching else None
        used += [row] if row and not any(row is other for other in used) else []
        if len(matching) > 1:
            groups = ", ".join(other.group for other in matching[1:])
            doubts.append(
                f"{value.model} {value.attention}: group {matching[0].group} is shown, {groups} would fit as well"
            )
        for column in value.columns:
            cell = row.cell(column, value.metric) if row else None
            where = _evaluation_text((column, value.metric)).removesuffix(f" {HEADS}")
            body.append([value.model, _attention_text(value), where, *_interval_line(cell, value.metric, value)])
    columns = list(dict.fromkeys(column for value in values for column in value.columns if column[1] != HEADS))
    notes = significance_lines(used, columns) if used else ["no run of this table at the paper's scale"]
    return Table(
        title,
        used,
        ["model", "attention", "evaluation", *HEADER],
        body,
        scale=scale_lines(used),
        protocols=protocol_lines(used, columns) if used else [],
        notes=[*dict.fromkeys(doubts), *notes, STATUS, COUNTED],
    )


def _attention_text(value: PaperValue) -> str:
    """With the knobs that tell the lines of another paper apart; the settings of Tables 1 to 3 are the defaults."""
    return value.attention if value.table in TABLES else f"{value.attention} {value.settings}".strip()

"""Rows laid out as tables: the same grid of cells for terminal, Markdown and HTML.

A language model has a column per evaluation. A classifier is measured with up to four weights (best, last, and the
averages of both) by two metrics, which side by side would be wider than a screen: each weights have a block of lines.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from fourierformer.results.comparison import Cell, Row, column_order, row_label
from fourierformer.results.metrics import metric, metric_text
from fourierformer.results.paper import scale_lines
from fourierformer.results.remarks import notes, protocol_lines
from fourierformer.results.significance import significance_lines
from fourierformer.tasks import Column, Task

DASH = "-"
# columns of words; all others hold numbers and stand to the right
TEXT_COLUMNS = frozenset({"model", "attention", "weights", "state", "split", "evaluation", "status of the paper's"})
Measure = tuple[Column, str]  # what one column of a block shows: (split, protocol) and the metric


@dataclass(frozen=True)
class Table:
    """One experiment on one data set: a grid of strings, the best cells in it, and the lines that belong under it."""

    title: str
    primary: str
    rows: list[Row]
    header: list[str]  # a line break separates the metric from its protocol
    body: list[list[str]]
    best: set[tuple[int, int]]
    starts: set[int]  # lines of the body that begin a further block
    protocols: list[str]
    notes: list[str]
    scale: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """Everything that stands under the table: scale and protocol, then what to know before believing it."""
        return [*self.scale, *self.protocols, *self.notes]


def tables(rows: Iterable[Row]) -> list[Table]:
    """One table per (experiment, data, metric): numbers that may be compared stand together, others do not."""
    return [_table(group) for group in table_groups(rows)]


def table_groups(rows: Iterable[Row]) -> list[list[Row]]:
    rows = sorted(rows, key=_table_key)  # stable: the order of comparison() holds within a table
    return [list(group) for _, group in groupby(rows, key=_table_key)]


def duration_text(seconds: float) -> str:
    if not math.isfinite(seconds):
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _table_key(row: Row) -> tuple[str, str, str]:
    return row.experiment, row.data, row.primary


def _table(rows: list[Row]) -> Table:
    primary = rows[0].primary
    several = ["model"] if len({row.model for row in rows}) > 1 else []
    task = rows[0].task
    columns = columns_of(rows)
    blocks = blocks_of(rows)
    left = [*several, "attention", *([task.blocks] if task.blocks else []), "n", "parameters"]
    body: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    starts: set[int] = set()
    for measures in blocks:
        # what was not measured with further weights needs no line there
        shown = [row for row in rows if measures is blocks[0] or any(row.cell(*measure) for measure in measures)]
        first = len(body)
        starts |= {first} if first else set()
        body += [_line(row, rows, measures, repeated=first > 0) for row in shown]
        best |= {(first + i, len(left) + j) for j, measure in enumerate(measures) for i in _best(shown, measure)}
    right = [f"{task.unit}/s", *(["data wait"] if task.waits_for_data else []), "train time", "state"]
    header = [*left, *(_title(task, measure) for measure in blocks[0]), *right]
    under = [*notes(rows, rows[0].data), *significance_lines(rows, columns)]
    protocols = protocol_lines(rows, columns)
    return Table(title_of(rows), primary, rows, header, body, best, starts, protocols, under, scale_lines(rows))


def title_of(rows: list[Row]) -> str:
    """Experiment and data; one model stands here, several in a column."""
    models = {row.model for row in rows}
    experiment, data, _ = _table_key(rows[0])
    return ", ".join(filter(None, [experiment, *(models if len(models) == 1 else []), data and f"data {data}"]))


def columns_of(rows: list[Row]) -> list[Column]:
    """The evaluations any row has; the usual ones of its task where none has any."""
    measured = sorted({column for row in rows for column in row.columns}, key=column_order)
    return measured or list(rows[0].task.usual)


def blocks_of(rows: list[Row]) -> list[list[Measure]]:
    """Blocks of lines, and what the columns of each show."""
    task, primary, columns = rows[0].task, rows[0].primary, columns_of(rows)
    keys = (primary, *task.beside)
    if not task.blocks:
        return [[(column, key) for column in columns for key in keys]]
    splits, protocols = ([*dict.fromkeys(names)] for names in zip(*columns, strict=True))
    return [[((split, protocol), key) for split in splits for key in keys] for protocol in protocols]


def _title(task: Task, measure: Measure) -> str:
    (split, protocol), key = measure
    kind = metric(key)
    return f"{split} {kind.short} {kind.unit}".rstrip() + ("" if task.blocks else f"\n{protocol}")


def _line(row: Row, rows: list[Row], measures: list[Measure], repeated: bool) -> list[str]:
    """`repeated`: what belongs to the run, not to its protocol, was said in the block above."""
    model = [row.model or DASH] if len({other.model for other in rows}) > 1 else []
    protocol = [measures[0][0][1].replace("_", " ")] if row.task.blocks else []
    cells = [_cell(row.cell(*measure), row, measure[1]) for measure in measures]
    parameters, *rest = _quantities(row)
    if repeated:
        parameters, rest = "", [""] * len(rest)
    return [*model, row_label(row, rows), *protocol, str(row.n), parameters, *cells, *rest]


def _quantities(row: Row) -> list[str]:
    seconds, wait = row.quantity("seconds"), row.quantity("data_wait")
    rate = row.quantity(f"{row.task.unit}_per_s")
    share = f"{100 * wait.mean:.0f} %" if wait and math.isfinite(wait.mean) else DASH
    waiting = [share] if row.task.waits_for_data else []
    time = duration_text(seconds.mean) if seconds else DASH
    return [_quantity(row.quantity("parameters")), _quantity(rate), *waiting, time, row.state]


def _cell(cell: Cell | None, row: Row, key: str) -> str:
    if cell is None:
        return DASH
    text = metric_text(cell.mean, key)
    if cell.sd is not None and math.isfinite(cell.sd):
        text += f" ± {metric_text(cell.sd, key)}"
    return text if cell.n == row.n else f"{text} (n {cell.n})"


def _quantity(cell: Cell | None) -> str:
    return f"{cell.mean:,.0f}" if cell is not None and math.isfinite(cell.mean) else DASH


def _best(rows: list[Row], measure: Measure) -> list[int]:
    """Indices of the rows with the best mean among those of their model; a lone value is not the best of anything."""
    column, key = measure
    if len({protocol for row in rows for protocol in row.protocols(column)}) != 1:
        return []  # scored differently: nothing in this column may be compared
    cells = [row.cell(column, key) for row in rows]
    means = {i: cell.mean for i, cell in enumerate(cells) if cell and math.isfinite(cell.mean)}
    best = []
    for model in {row.model for row in rows}:
        rivals = {i: mean for i, mean in means.items() if rows[i].model == model}
        if len(rivals) > 1:
            target = max(rivals.values()) if metric(key).higher_is_better else min(rivals.values())
            best += [i for i, mean in rivals.items() if mean == target]
    return best

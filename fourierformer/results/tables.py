"""Rows laid out as tables: the same cells, protocol lines and notes for terminal, Markdown and HTML."""

import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from fourierformer.results.comparison import Cell, Column, Row, column_order

DASH = "-"
TEXT_COLUMNS = frozenset({"model", "attention", "state"})
# the smallest value is the best one for every metric of a language model; accuracies would be the exception
HIGHER_IS_BETTER = frozenset({"top1", "top5", "accuracy"})
DECIMALS = {"ppl": 2, "bpc": 4}
NOT_COMPARABLE = "embedded corpus: not comparable with WikiText numbers"


@dataclass(frozen=True)
class Table:
    """One experiment on one data set: a grid of strings, the best cells in it, and the lines that belong under it."""

    title: str
    primary: str
    rows: list[Row]
    header: list[str]  # a line break separates the metric from its protocol
    body: list[list[str]]
    best: set[tuple[int, int]]
    protocols: list[str]
    notes: list[str]


def tables(rows: Iterable[Row]) -> list[Table]:
    """One table per (experiment, data, metric): numbers that may be compared stand together, others do not."""
    rows = sorted(rows, key=_table_key)  # stable: the order of comparison() holds within a table
    return [_table(list(group)) for _, group in groupby(rows, key=_table_key)]


def render_text(rows: Iterable[Row], colour: bool = False) -> str:
    """For the terminal. The best value of a column has a star, since colour may be off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # wide enough never to wrap a cell: a terminal that is too narrow wraps the line itself, nothing is cut
    console = Console(file=io.StringIO(), force_terminal=colour, no_color=not colour, width=1000)
    for table in tables(rows):
        style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
        grid = Grid(title=Text(table.title), title_justify="left", title_style="bold", **style)
        starred = {j for _, j in table.best}
        for name in table.header:
            grid.add_column(Text(name), justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
        for i, line in enumerate(table.body):
            # every other cell of a column with a star is padded, so that the digits still stand under each other
            marks = [" *" if (i, j) in table.best else "  " * (j in starred) for j in range(len(line))]
            grid.add_row(
                *(Text(cell + mark, "bold" if "*" in mark else "") for cell, mark in zip(line, marks, strict=True))
            )
        console.print(grid)
        for line in [*(["* best of its column"] if table.best else []), *table.protocols, *table.notes]:
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def render_markdown(rows: Iterable[Row]) -> str:
    """For README and issues. The best value of a column is bold."""
    parts = []
    for table in tables(rows):
        lines = [
            [_escape(name).replace("\n", ", ") for name in table.header],
            ["---" if name in TEXT_COLUMNS else "---:" for name in table.header],
        ]
        for i, line in enumerate(table.body):
            lines.append(
                [f"**{_escape(cell)}**" if (i, j) in table.best else _escape(cell) for j, cell in enumerate(line)]
            )
        grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        under = "\n".join(f"- {_escape(line)}" for line in [*table.protocols, *table.notes])
        parts.append(f"**{_escape(table.title)}**\n\n{grid}\n\n{under}")
    return "\n\n".join(parts) + "\n"


def metric_text(value: float, primary: str) -> str:
    """Two decimals for a perplexity, four for bits per character; what is not finite is spelled out."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    # a diverged model's perplexity needs its size, not its decimals
    return f"{value:.3g}" if abs(value) >= 1e7 else f"{value:,.{DECIMALS.get(primary, 3)}f}"


def duration_text(seconds: float) -> str:
    if not math.isfinite(seconds):
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def column_title(column: Column, primary: str) -> str:
    return f"{column[0]} {primary}\n{column[1]}"


def row_label(row: Row, rows: Iterable[Row]) -> str:
    """The attention's name, with the group's hash where a table holds two configurations of it."""
    twins = [other for other in rows if (other.model, other.attention) == (row.model, row.attention)]
    return row.attention if len(twins) == 1 else f"{row.attention} [{row.group[:8]}]"


def _table_key(row: Row) -> tuple[str, str, str]:
    return row.experiment, row.data, row.primary


def _table(rows: list[Row]) -> Table:
    experiment, data, primary = _table_key(rows[0])
    models = sorted({row.model for row in rows})  # one model stands in the title, several in a column
    measured = sorted({column for row in rows for column in row.columns}, key=column_order)
    columns = measured or [("valid", "segment"), ("test", "segment")]
    names = [column_title(column, primary or "metric") for column in columns]
    lines, protocols = [], _protocols(rows, columns)
    for row in rows:
        cells = [_cell(row.cell(column), row) for column in columns]
        seconds = row.quantity("seconds")
        model = [row.model or DASH] if len(models) > 1 else []
        left = [*model, row_label(row, rows), str(row.n), _quantity(row.quantity("parameters"))]
        time = duration_text(seconds.mean) if seconds else DASH
        lines.append([*left, *cells, _quantity(row.quantity("tokens_per_s")), time, row.state])
    header = [*(["model"] if len(models) > 1 else []), "attention", "n", "parameters"]
    # a difference in protocol makes a column incomparable: then nothing in it is best
    comparable = [i for i, column in enumerate(columns) if len(_distinct(rows, column)) == 1]
    best = {(i, len(header) + j) for j in comparable for i in _best(rows, columns[j])}
    title = ", ".join(filter(None, [experiment, *(models if len(models) == 1 else []), data and f"data {data}"]))
    header += [*names, "tokens/s", "train time", "state"]
    return Table(title, primary, rows, header, lines, best, protocols, _notes(rows, data))


def _cell(cell: Cell | None, row: Row) -> str:
    if cell is None:
        return DASH
    text = metric_text(cell.mean, row.primary)
    if cell.sd is not None and math.isfinite(cell.sd):
        text += f" ± {metric_text(cell.sd, row.primary)}"
    return text if cell.n == row.n else f"{text} (n {cell.n})"


def _quantity(cell: Cell | None) -> str:
    return f"{cell.mean:,.0f}" if cell is not None and math.isfinite(cell.mean) else DASH


def _best(rows: list[Row], column: Column) -> list[int]:
    """Indices of the rows with the best mean among those of their model; a lone value is not the best of anything."""
    means = {i: cell.mean for i, row in enumerate(rows) if (cell := row.cell(column)) and math.isfinite(cell.mean)}
    best = []
    for model in {row.model for row in rows}:
        rivals = {i: mean for i, mean in means.items() if rows[i].model == model}
        if len(rivals) > 1:
            target = max(rivals.values()) if rows[0].primary in HIGHER_IS_BETTER else min(rivals.values())
            best += [i for i, mean in rivals.items() if mean == target]
    return best


def _distinct(rows: list[Row], column: Column) -> set[tuple]:
    return {protocol for row in rows for protocol in row.protocols(column)}


def _protocols(rows: list[Row], columns: list[Column]) -> list[str]:
    """One line per column: what exactly was scored. Rows that were scored differently are named."""
    lines = []
    for split, protocol in columns:
        found = _distinct(rows, (split, protocol))
        texts = [
            f"context {_count(context)}, stride {_count(stride)}, {_count(tokens)} tokens scored"
            for context, stride, tokens in sorted(found, key=str)
        ]
        if texts:
            warning = " (DIFFERS between rows: not comparable)" if len(texts) > 1 else ""
            lines.append(f"{split}, {protocol}: {'; '.join(texts)}{warning}")
    return lines


def _count(value) -> str:
    return f"{value:,}" if isinstance(value, int) else DASH


def _notes(rows: list[Row], data: str) -> list[str]:
    """What a reader must know before believing the numbers above."""
    notes = [note for row in rows for note in row.notes]
    if data.startswith("builtin"):
        notes.append(NOT_COMPARABLE)
    if any(row.n > 1 for row in rows):
        notes.append("± is the sample standard deviation over n seeds")
    if len(rows) > 1 and any(row.n == 1 for row in rows):
        notes.append(
            "n = 1: one seed supports no claim about which is better; run several, for example seed=range(1,6)"
        )
    lengths = {row_label(row, rows): row.quantity("steps") for row in rows}
    steps = {label: f"{cell.mean:,.0f}" for label, cell in lengths.items() if cell}
    if len(set(steps.values())) > 1:
        notes.append("trained for different numbers of steps: " + ", ".join(f"{k} {v}" for k, v in steps.items()))
    for row in rows:
        for run in row.runs:
            notes += [str(note) for note in _list(run.summary.get("notes"))]
            notes += [f"{run.name}: {text}" for text in _doubts(run.summary)]
        notes += [f"{run.name}: {'; '.join([run.state, *run.remarks()])}" for run in row.others]
    return list(dict.fromkeys(re.sub(r"\s+", " ", note) for note in notes))


def _doubts(summary: dict) -> list[str]:
    doubts = []
    if summary.get("debug"):
        doubts.append("a debug run, not a measurement")
    if summary.get("bad_steps"):
        doubts.append(f"{summary['bad_steps']} steps skipped for non-finite numbers")
    return doubts


def _list(value) -> list:
    return value if isinstance(value, list) else []


def _escape(text: str) -> str:
    """Markdown inside a table cell: only what would break the grid or turn into markup."""
    return re.sub(r"([|*<>`\[\]\\])", r"\\\1", text)

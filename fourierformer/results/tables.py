"""Rows laid out as tables, with the lines under them that a reader must know before believing the numbers.

A language model has a column per evaluation. A classifier is measured with up to four weights (best, last, and the
averages of both) by two metrics, which side by side would be wider than a screen: each weights have a block of lines.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from fourierformer.results.baseline import Pair, best_settings, pairs, significance_lines, without_baseline
from fourierformer.results.comparison import Cell, Row, evaluations, mean_text
from fourierformer.results.formats import DASH, Table, text_of
from fourierformer.results.labels import full_labels, mixes_settings, row_label, row_labels, several_models
from fourierformer.results.metrics import HEADS, column_order, metric, protocol_text
from fourierformer.results.paper import scale_lines
from fourierformer.results.statistics import difference_text, p_text
from fourierformer.results.warnings import misleading
from fourierformer.tasks import Column, Task

Measure = tuple[Column, str]  # what one column of a block shows: (split, protocol) and the metric
DAGGER = "†"  # beside rows with runs that were made with uncommitted changes
OF_BEST = "measured with the best checkpoint of each run, by validation during training"
OVER_SEEDS = "± is the sample standard deviation over n seeds"
HEAD_COLUMNS = {
    "head_distance": "distance of\nattention maps",
    "head_distance_sd": "its sd\nover layers",
    "row_distance": "distance\nper row",
    "output_distance": "distance of\nhead outputs",
    "attended_share": "attended\nshare",
    "rank": "rank of\nthe maps",
}
HEAD_NOTE = (
    "distances: of two heads' attention maps (or outputs), averaged over pairs, sequences and layers; larger = less "
    "redundant. Attended share: sum of the weights of a query, sum w / (eps + sum w) for Fourier attention; "
    "signed weights may have any sum"
)


def render_text(rows: Iterable[Row], colour: bool = False, width: int | None = None) -> str:
    return text_of(tables(rows), colour, width)


def tables(rows: Iterable[Row]) -> list[Table]:
    """One table per (experiment, data, metric): numbers that may be compared stand together, others do not.

    Examples:
        >>> from fourierformer.results import collect, comparison, tables
        >>> [table.title for table in tables(comparison(collect("runs")))]
        ['smoke, lm_tiny, data builtin_text']
    """
    return [_table(group) for group in table_groups(rows)]


def best_tables(rows: Iterable[Row]) -> list[Table]:
    """The tables whose rows differ in more than their attention, with each attention at the settings where its
    validation is best."""
    return [table for group in table_groups(rows) if (table := _best_table(group))]


def _best_table(rows: list[Row]) -> Table | None:
    columns = [column for column in quoted_columns(rows[0].task) if column[0] == "valid"]
    measured = next((column for column in columns if any(row.cell(column) for row in rows)), None)
    if measured is None or not mixes_settings(rows):
        return None
    choice = best_settings(rows, measured)
    if len(choice.rows) < 2:
        return None
    table = _table(choice.rows, own_settings=True)
    return replace(
        table, title=f"{table.title}: each attention at its own settings", notes=[*choice.lines, *table.notes]
    )


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


def _table(rows: list[Row], own_settings: bool = False) -> Table:
    task, blocks = rows[0].task, blocks_of(rows)
    labels = dict(zip(map(id, rows), row_labels(rows), strict=True))
    left = [
        *model_column(rows),
        "attention",
        *([task.protocol_column] if task.protocol_column else []),
        "n",
        "parameters",
    ]
    body: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    starts: set[int] = set()
    differences: list[str] = []
    compared = pairs(rows, columns_of(rows), across_settings=own_settings)
    for measures in blocks:
        # what was not measured with further weights needs no line there
        shown = [row for row in rows if measures is blocks[0] or any(row.cell(*measure) for measure in measures)]
        first = len(body)
        starts |= {first} if first else set()
        body += [_line(row, rows, labels[id(row)], measures, repeated=first > 0) for row in shown]
        measured = {column for column, _ in measures}
        quoted = next((column for column in quoted_columns(task) if column in measured), None)
        differences += [_difference_text(row, quoted, compared) for row in shown]
        best |= {(first + i, len(left) + j) for j, measure in enumerate(measures) for i in _best(shown, measure)}
    right = [f"{task.unit}/s", *(["data wait"] if task.waits_for_data else []), "train time", "state"]
    header = [*left, *(_head(task, measure) for measure in blocks[0]), *right]
    columns = columns_of(rows)
    differences = differences if any(differences) else []
    return Table(
        *(title_of(rows), rows, header, body, best, starts, scale_lines(rows)),
        protocols=protocol_lines(rows, columns),
        notes=[*([] if own_settings else without_baseline(rows)), *_notes(rows)],
        findings=significance_lines(rows, columns, across_settings=own_settings),
        differences=differences,
        own_settings=own_settings,
    )


def quoted_columns(task: Task) -> list[Column]:
    """The number a paper would quote comes first."""
    return [(split, protocol) for split in ("test", "valid") for protocol in task.preferred_protocols]


def _difference_text(row: Row, column: Column | None, compared: list[Pair]) -> str:
    """'-1.25 ± 0.40 (p = 0.03)', without what a single seed does not have."""
    for pair in compared:
        if pair.row is row and pair.column == column:
            p = "" if pair.p is None else f" ({p_text(pair.p)})"
            return difference_text(pair.difference, row.primary) + p
    return ""


def title_of(rows: list[Row]) -> str:
    """Experiment and data; one model stands here, several in a column."""
    row = rows[0]
    model = "" if several_models(rows) else row.model
    return ", ".join(filter(None, [row.experiment, model, row.data and f"data {row.data}"]))


def model_column(rows: list[Row]) -> list[str]:
    return ["model"] if several_models(rows) else []


def columns_of(rows: list[Row]) -> list[Column]:
    """The evaluations any row has; the usual ones of its task where none has any."""
    measured = {column for row in rows for run in row.runs for column in evaluations(run)}
    return sorted(measured, key=column_order) or list(rows[0].task.default_columns)


def blocks_of(rows: list[Row]) -> list[list[Measure]]:
    """Blocks of lines, and what the columns of each show."""
    task, primary, columns = rows[0].task, rows[0].primary, columns_of(rows)
    keys = (primary, *task.secondary_metrics)
    if not task.protocol_column:
        measures = [(column, key) for column in columns for key in keys]
        return [[measure for measure in measures if measure[1] == primary or any(row.cell(*measure) for row in rows)]]
    splits, protocols = ([*dict.fromkeys(names)] for names in zip(*columns, strict=True))
    return [[((split, protocol), key) for split in splits for key in keys] for protocol in protocols]


def _head(task: Task, measure: Measure) -> str:
    (split, protocol), key = measure
    kind = metric(key)
    return f"{split} {kind.short} {kind.unit}".rstrip() + ("" if task.protocol_column else f"\n{protocol}")


def _line(row: Row, rows: list[Row], label: str, measures: list[Measure], repeated: bool) -> list[str]:
    """`repeated`: what belongs to the run, not to its protocol, stands in the block above."""
    model = [row.model or DASH] if several_models(rows) else []
    protocol = [protocol_text(measures[0][0])] if row.task.protocol_column else []
    cells = [_cell(row.cell(*measure), row, measure[1]) for measure in measures]
    parameters, *rest = _quantities(row)
    if repeated:
        parameters, rest = "", [""] * len(rest)
    label += f" {DAGGER}" if any(run.dirty for run in row.runs) else ""
    return [*model, label, *protocol, str(row.n), parameters, *cells, *rest]


def _quantities(row: Row) -> list[str]:
    seconds, wait = row.quantity("seconds"), row.quantity("data_wait")
    share = f"{100 * wait.mean:.0f} %" if wait and math.isfinite(wait.mean) else DASH
    waiting = [share] if row.task.waits_for_data else []
    time = duration_text(seconds.mean) if seconds else DASH
    rate = row.quantity(f"{row.task.unit}_per_s")
    return [_count_text(row.quantity("parameters")), _count_text(rate), *waiting, time, row.state]


def _cell(cell: Cell | None, row: Row, key: str) -> str:
    if cell is None:
        return DASH
    return mean_text(cell, key) if cell.n == row.n else f"{mean_text(cell, key)} (n {cell.n})"


def _count_text(cell: Cell | None) -> str:
    return f"{cell.mean:,.0f}" if cell is not None and math.isfinite(cell.mean) else DASH


def _best(rows: list[Row], measure: Measure) -> list[int]:
    """Indices of the rows with the best mean among those of their model; a lone value is not the best of anything, nor
    is a mean over those seeds alone that have a value, or that have not diverged."""
    column, key = measure
    if len({protocol for row in rows for protocol in row.protocols(column)}) != 1:
        return []  # scored differently: nothing in this column may be compared
    cells = [row.cell(column, key) for row in rows]
    whole = {i: cell for i, cell in enumerate(cells) if cell and cell.n == rows[i].n and not rows[i].diverged}
    means = {i: cell.mean for i, cell in whole.items() if math.isfinite(cell.mean)}
    best = []
    for model in {row.model for row in rows}:
        rivals = {i: mean for i, mean in means.items() if rows[i].model == model}
        if len(rivals) > 1:
            target = max(rivals.values()) if metric(key).higher_is_better else min(rivals.values())
            best += [i for i, mean in rivals.items() if mean == target]
    return best


def protocol_lines(rows: list[Row], columns: list[Column]) -> list[str]:
    """One line per split and protocol: what exactly was scored. Rows that were scored differently are named."""
    lines, task = [], rows[0].task
    for column in columns:
        scored = sorted({numbers for row in rows for numbers in row.protocols(column)}, key=str)
        counts = [[f"{count:,}" if isinstance(count, int) else DASH for count in numbers] for numbers in scored]
        texts = [task.scored_text(dict(zip(task.scored, numbers, strict=True))) for numbers in counts]
        if texts:
            warning = " (DIFFERS between rows: not comparable)" if len(texts) > 1 else ""
            note = f"; {task.protocol_notes[column[1]]}" if column[1] in task.protocol_notes else ""
            lines.append(f"{column[0]}, {protocol_text(column)}: {'; '.join(texts)}{warning}{note}")
    return lines


def _notes(rows: list[Row]) -> list[str]:
    notes = [note for row in rows for note in row.notes]
    if rows[0].data in rows[0].task.embedded:
        notes.append(rows[0].task.embedded[rows[0].data])
    if not rows[0].task.protocol_column and any(row.n for row in rows):
        notes.append(OF_BEST)
    if any(row.n > 1 for row in rows):
        notes.append(OVER_SEEDS)
    if len(rows) > 1 and any(row.n == 1 for row in rows):
        notes.append(
            "n = 1: one seed supports no claim about which is better; run several, for example seed=range(1,6)"
        )
    lengths = {label: row.quantity("steps") for label, row in zip(full_labels(rows), rows, strict=True)}
    steps = {label: f"{cell.mean:,.0f}" for label, cell in lengths.items() if cell}
    if len(set(steps.values())) > 1:
        notes.append("trained for different numbers of steps: " + ", ".join(f"{k} {v}" for k, v in steps.items()))
    runs = [run for row in rows for run in row.runs]
    if dirty := sum(run.dirty for run in runs):
        notes.append(f"{DAGGER} {dirty} of {len(runs)} runs were made with uncommitted changes")
    notes += [doubt for row in rows for doubt in misleading(row, rows)]
    for row in rows:
        for run in row.runs:
            own = run.summary.get("notes")
            notes += map(str, own if isinstance(own, list) else [])
            notes += [f"{run.name}: a debug run, not a measurement"] if run.summary.get("debug") else []
            if skipped := run.summary.get("bad_steps"):
                notes.append(f"{run.name}: {skipped} steps skipped for non-finite numbers")
        notes += [f"{run.name}: {'; '.join([run.state, *run.remarks()])}" for run in row.others]
    return list(dict.fromkeys(re.sub(r"\s+", " ", note) for note in notes))


def head_tables(rows: Iterable[Row]) -> list[Table]:
    """How much heads differ (the paper's Table 3), for every run that scripts/head_redundancy.py has measured."""
    groups = ([row for row in group if any(run.heads for run in row.runs)] for group in table_groups(rows))
    return [_head_table(group) for group in groups if group]


def _head_table(rows: list[Row]) -> Table:
    """With a column for each quantity that was measured: older files lack some."""
    measured = {key for row in rows for run in row.runs for numbers in run.heads.values() for key in numbers}
    quantities = {key: words for key, words in HEAD_COLUMNS.items() if key in measured}
    body = []
    for row in rows:
        for split in sorted({split for run in row.runs for split in run.heads}):
            cells = {key: row.cell((split, HEADS), key) for key in quantities}
            n = max((cell.n for cell in cells.values() if cell), default=0)
            texts = [mean_text(cell, key) if cell else DASH for key, cell in cells.items()]
            body.append([row.model, row_label(row, rows), split, str(n), *texts])
    title = f"{title_of(rows)}: how much the heads of a layer differ"
    header = ["model", "attention", "split", "n", *quantities.values()]
    stale = [
        f"{run.name}: heads of {split} are those of step {step:,}, results are not: scripts/head_redundancy.py "
        "measures them again"
        for row in rows
        for run in row.runs
        for split, step in run.other_head_steps.items()
    ]
    return Table(title, rows, header, body, scale=scale_lines(rows), notes=[HEAD_NOTE, OVER_SEEDS, *stale])

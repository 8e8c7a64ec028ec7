"""The lines under a table: what exactly was scored, and what a reader must know before believing the numbers."""

import re

from fourierformer.results.comparison import Row, row_label
from fourierformer.tasks import Column

NOT_COMPARABLE = "embedded corpus: not comparable with WikiText numbers"
DIGITS = "embedded digits: not comparable with CIFAR-10 or ImageNet numbers"


def protocol_lines(rows: list[Row], columns: list[Column]) -> list[str]:
    """One line per split and protocol: what exactly was scored. Rows that were scored differently are named."""
    lines = []
    task = rows[0].task
    for split, protocol in columns:
        found = {scored for row in rows for scored in row.protocols((split, protocol))}
        counted = [dict(zip(task.scored, map(_count, numbers), strict=True)) for numbers in sorted(found, key=str)]
        texts = [task.scored_text(numbers) for numbers in counted]
        if texts:
            warning = " (DIFFERS between rows: not comparable)" if len(texts) > 1 else ""
            note = f"; {task.protocol_notes[protocol]}" if protocol in task.protocol_notes else ""
            lines.append(f"{split}, {protocol.replace('_', ' ')}: {'; '.join(texts)}{warning}{note}")
    return lines


def notes(rows: list[Row], data: str) -> list[str]:
    notes = [note for row in rows for note in row.notes]
    if data.startswith("builtin"):
        notes.append(DIGITS if data in ("builtin_images", "builtin_pixels") else NOT_COMPARABLE)
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
    runs = [run for row in rows for run in row.runs]
    if dirty := sum(run.field("dirty") is True for run in runs):
        notes.append(f"{dirty} of {len(runs)} runs were made with uncommitted changes")
    for row in rows:
        for run in row.runs:
            notes += [str(note) for note in _list(run.summary.get("notes"))]
            notes += [f"{run.name}: {text}" for text in _doubts(run.summary)]
        notes += [f"{run.name}: {'; '.join([run.state, *run.remarks()])}" for run in row.others]
    return list(dict.fromkeys(re.sub(r"\s+", " ", note) for note in notes))


def _count(value) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _doubts(summary: dict) -> list[str]:
    doubts = []
    if summary.get("debug"):
        doubts.append("a debug run, not a measurement")
    if summary.get("bad_steps"):
        doubts.append(f"{summary['bad_steps']} steps skipped for non-finite numbers")
    return doubts


def _list(value) -> list:
    return value if isinstance(value, list) else []

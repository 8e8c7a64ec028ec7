"""A section for each table of the comparison: what came out, with which certainty, and how it got there."""

from dataclasses import replace

from fourierformer.plots import Difference, Picture, comparison_chart, diagnostic_chart, difference_chart
from fourierformer.report.headline import headline, quoted_columns
from fourierformer.report.heads import head_parts
from fourierformer.report.section import Charts, Section, Sheet, sheet_of, slugs, without_columns
from fourierformer.results import Run, Table, comparison, tables
from fourierformer.results.comparison import Row, row_label, seed_of
from fourierformer.results.curves import Curve, diagnostic_curves, metric_curves, validation_metric
from fourierformer.results.evidence import evidence
from fourierformer.results.layout import DASH
from fourierformer.results.metrics import Metric, metric
from fourierformer.results.paper import read_paper
from fourierformer.results.paper_tables import paper_tables
from fourierformer.results.significance import BASELINE, pairs, who

MANY_LINES = 16  # of intervals, beyond which they are folded away
MANY = 4  # charts of one kind beyond which they are folded away
DIAGNOSTICS = {  # what attention layers log about themselves: title and axis
    "radius": ("Learned radius per layer", "radius R"),
    "mass": ("Weight that eps leaves, per layer", "mass of a row"),
}
PAPERS = ("paper", "ours - paper", "status of the paper's")  # columns of the evidence


def run_sections(runs: list[Run]) -> list[Section]:
    rows = comparison(runs)
    found = tables(rows)
    sections = [_section(table, anchor) for table, anchor in zip(found, slugs(t.title for t in found), strict=True)]
    # an installed copy of the package comes without the paper's numbers
    papers = [table for table in paper_tables(rows) if table.rows] if read_paper() else []
    if papers:
        sheets = [sheet_of(table, table.title) for table in papers]
        sections.append(Section("The paper's tables beside ours", "the-papers-tables", sheets))
    return sections


def _section(table: Table, anchor: str) -> Section:
    sheet = sheet_of(table, _caption(table))
    parts: list[Sheet | Charts] = [Charts(_difference_pictures(table, anchor))]
    parts.append(replace(sheet, findings=[*_missing_seeds(table.rows), *sheet.findings]))
    parts += [_evidence(found, table.lines) for found in evidence(table.rows)]
    parts.append(Charts(_metric_pictures(table, anchor)))
    parts += head_parts(table, anchor)
    for name in DIAGNOSTICS:
        found, folded = _diagnostic_pictures(table, anchor, name), DIAGNOSTICS[name][0]
        parts.append(Charts(found, folded, small=True, folded=True) if len(found) > MANY else Charts(found, small=True))
    shown = [part for part in parts if not isinstance(part, Charts) or part.pictures]
    return Section(table.title, anchor, shown, headline(table))


def _evidence(table: Table, said: list[str]) -> Sheet:
    """Beside the paper's numbers where it has some."""
    printed = table.header.index("paper")
    if any(line[printed] != DASH for line in table.body):
        return sheet_of(table, "Every number with its interval, and what the paper prints in its place.", said)
    sheet = sheet_of(table, "Every number with its interval; the paper prints nothing to compare it with.", said)
    return replace(without_columns(sheet, PAPERS), folded=len(sheet.body) > MANY_LINES)


def _missing_seeds(rows: list[Row]) -> list[str]:
    """Seeds that other configurations of the table have: a run that was never started leaves no trace of its own."""
    seeds = [{seed_of(run) for run in (*row.runs, *row.others)} for row in rows]
    wanted = {seed for found in seeds for seed in found if isinstance(seed, int)}
    missing = [(row_label(row, rows), sorted(wanted - found)) for row, found in zip(rows, seeds, strict=True)]
    return [f"no run of {who} with seed {', '.join(map(str, lacking))}" for who, lacking in missing if lacking]


def _caption(table: Table) -> str:
    weights = " and weights" if "weights" in table.header else ""
    same = " for the same weights" if table.starts else ""
    best = f"; the best value of a column{same} is bold on a tint" if table.best else ""
    return f"One row per configuration{weights}{best}."


def _difference_pictures(table: Table, anchor: str) -> list[Picture]:
    """One, of the evaluation that a paper would quote, where softmax has rivals there."""
    columns, kind = quoted_columns(table.rows[0].task), metric(table.primary)
    found = [pair for pair in pairs(table.rows, columns) if pair.found.difference is not None]
    column = next((column for column in columns if any(pair.column == column for pair in found)), None)
    if column is None:
        return []
    lines = [
        Difference(who(pair.row, table.rows), pair.found.difference, pair.found.half_width)
        for pair in found
        if pair.column == column and pair.found.difference is not None
    ]
    title = f"{kind.name.capitalize()} against {BASELINE} ({column[0]} {column[1].replace('_', ' ')})"
    better = "right" if kind.higher_is_better else "left"
    caption = (
        f"Mean over seeds; better is to the {better}. The tests below are corrected for their number, intervals not."
    )
    return [difference_chart(lines, f"difference--{anchor}", title, f"difference in {kind.axis}", caption)]


def _metric_pictures(table: Table, anchor: str) -> list[Picture]:
    key = validation_metric(table.rows, table.primary)
    wanted = (
        ("train_loss", "Training loss", metric("loss")),
        (f"valid_{key}", f"Validation {metric(key).name}", metric(key)),
        (f"ema_valid_{key}", f"Validation {metric(key).name}, averaged weights", metric(key)),
    )
    pictures = []
    for series, title, kind in wanted:
        curves, width = metric_curves(table.rows, series)
        if curves:
            name = f"{series.replace('_', '-')}--{anchor}"
            pictures.append(comparison_chart(curves, name, title, kind, _how(curves, width, kind)))
    return pictures


def _diagnostic_pictures(table: Table, anchor: str, diagnostic: str) -> list[Picture]:
    title, axis = DIAGNOSTICS[diagnostic]
    labels = [row_label(row, table.rows) for row in table.rows]
    pictures = []
    for row, label, name in zip(table.rows, labels, slugs(labels), strict=True):
        curves = diagnostic_curves(row, diagnostic)
        if curves:
            seeds = max(curve.seeds for curve in curves)
            caption = f"Mean over {seeds} seeds." if seeds > 1 else ""
            of_row = f"{diagnostic}-{name}--{anchor}"
            pictures.append(diagnostic_chart(curves, of_row, f"{title}, {label}", axis, caption))
    return pictures


def _how(curves: list[Curve], width: int, kind: Metric) -> str:
    parts = [f"Each point is the mean over {width:,} steps." if width else "Every logged step, not smoothed."]
    if any(curve.seeds > 1 for curve in curves):
        parts.append("Line: mean over seeds; band: from the lowest to the highest seed.")
    scale = "The logarithmic scale" if kind.logarithmic else "The scale"
    parts.append(f"{scale} fits the last {1 - kind.skipped:.0%} of training.")
    return " ".join(parts)

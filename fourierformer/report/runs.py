"""A section for each table of the comparison: what came out, with which certainty, and how it got there."""

import math
from dataclasses import replace

from fourierformer.report.charts import difference_chart
from fourierformer.report.curves import (
    Curve,
    comparison_chart,
    diagnostic_chart,
    diagnostic_curves,
    layer_chart,
    layer_curves,
    metric_curves,
    time_curves,
    validation_metric,
)
from fourierformer.report.maps import map_charts
from fourierformer.report.picture import Picture
from fourierformer.report.section import Charts, Section, slug, slugs
from fourierformer.results import Run, Table, comparison, tables
from fourierformer.results.baseline import BASELINE, baselines_of, pairs
from fourierformer.results.comparison import Row, evaluations, seed_of
from fourierformer.results.formats import DASH
from fourierformer.results.intervals import interval_tables, paper_tables
from fourierformer.results.labels import full_label, row_label, same_setting, several_models
from fourierformer.results.metrics import column_text, metric, metric_text, protocol_text, task_behind
from fourierformer.results.runs import number
from fourierformer.results.statistics import SIGNIFICANT, change_text, p_text, verdict
from fourierformer.results.tables import best_tables, columns_of, head_tables, quoted_columns
from fourierformer.results.warnings import misleading
from fourierformer.tasks import Column, Metric

MANY = 4  # lines of a chart beyond which it takes the whole page
SHORT = 24  # letters of a label that leave half a page room for its line
DIAGNOSTICS = {  # what attention layers log about themselves, by its key in metrics.jsonl: title, axis, largest value
    "radius": ("Learned radius per layer", "radius R", math.inf),
    "attended_share": (
        "Attended share of the last query, per layer: sum w / (eps + sum w)",
        "attended share",
        1.0,
    ),
}
LAYER_CHARTS = {  # what heads.json has of each layer: title, axis, what it means
    "head_distance": ("Distance between heads per layer", "distance of attention maps", "Larger: less redundant."),
    "rank": ("Rank of the attention maps per layer", "rank", "Singular values above 1e-6, mean over heads."),
}
HEADS = "How much the heads of a layer differ: means over layers, sequences and pairs of heads."
OVER_SEEDS = "Line: mean over seeds; band: from the lowest to the highest seed."
SPEED = "Without evaluations; of runs on different or busy machines the times compare nothing."
UNITS_OF_TIME = ((7200, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))  # from so many seconds on; its length
OWN_SETTINGS = "Each attention at the settings where its validation is best, compared there."
PAPERS = ("paper", "ours - paper", "status of the paper's")  # columns of the table of intervals


def run_sections(runs: list[Run], maps: bool = False) -> list[Section]:
    """Sections of the tables of runs. `maps`: also attention maps, which loads models of these runs."""
    rows = comparison(runs)
    compared = tables(rows)
    anchors = slugs(table.title for table in compared)
    sections = [_section(table, anchor, maps) for table, anchor in zip(compared, anchors, strict=True)]
    papers = [table for table in paper_tables(rows) if table.rows]
    if papers:
        sections.append(Section("The paper's tables beside ours", "the-papers-tables", papers))
    return sections


def _section(table: Table, anchor: str, maps: bool) -> Section:
    best = best_tables(table.rows)
    curves = _metric_pictures(table, anchor)
    beside = sum(not picture.wide for picture in curves) % 2 == 1  # a free place beside one of them
    parts: list[Table | Charts] = [Charts([*_difference_pictures(table, anchor, beside), *curves])]
    findings = [*_missing_seeds(table.rows), *table.findings]
    parts.append(replace(table.with_differences(), title=_caption(table), findings=findings))
    parts += [_shown(fair.with_differences(), OWN_SETTINGS, table) for fair in best]
    parts += [_intervals(intervals, table) for intervals in interval_tables(table.rows)]
    for heads in head_tables(table.rows):
        parts += [_shown(heads, HEADS, table), Charts(_layer_pictures(heads, anchor))]
    parts.append(Charts([picture for name in DIAGNOSTICS for picture in _diagnostic_pictures(table, anchor, name)]))
    parts += map_charts(table.rows, anchor) if maps else []
    shown = [part for part in parts if not isinstance(part, Charts) or part.pictures]
    debug = all(run.field("debug") for row in table.rows for run in (*row.runs, *row.others))
    return Section(table.title, anchor, shown, headline((best or [table])[0]), folded=debug)


def _caption(table: Table) -> str:
    weights = " and weights" if "weights" in table.header else ""
    same = " for the same weights" if table.starts else ""
    best = f"; the best value of a column{same} is bold on a tint" if table.best else ""
    return f"One row per configuration{weights}{best}."


def _missing_seeds(rows: list[Row]) -> list[str]:
    """Seeds that a row lacks and other rows have: a run that was never started leaves no trace of its own."""
    seeds = [{seed_of(run) for run in (*row.runs, *row.others)} for row in rows]
    wanted = {seed for of_row in seeds for seed in of_row if isinstance(seed, int)}
    missing = [(full_label(row, rows), sorted(wanted - of_row)) for row, of_row in zip(rows, seeds, strict=True)]
    return [f"no run of {label} with seed {', '.join(map(str, lacking))}" for label, lacking in missing if lacking]


def _shown(table: Table, caption: str, above: Table) -> Table:
    return replace(table.without_lines(above.lines), title=caption)


def _intervals(table: Table, above: Table) -> Table:
    """The table of intervals, beside the paper's numbers where there are some."""
    printed = table.header.index("paper")
    if any(line[printed] != DASH for line in table.body):
        return _shown(table, "Every number with its interval, and what the paper prints in its place.", above)
    caption = "Every number with its interval; the paper prints nothing to compare it with"
    return replace(_shown(table.without_columns(PAPERS), caption, above), folded=True)


def _difference_pictures(table: Table, anchor: str, beside: bool) -> list[Picture]:
    """Charts of differences to softmax in the evaluation that a paper would quote: one or none."""
    columns, kind = quoted_columns(table.rows[0].task), metric(table.primary)
    compared = [pair for pair in pairs(table.rows, columns) if pair.difference.mean is not None]
    column = next((column for column in columns if any(pair.column == column for pair in compared)), None)
    if column is None:
        return []
    lines = [(full_label(pair.row, table.rows), pair.difference) for pair in compared if pair.column == column]
    if len(lines) > MANY:
        lines.sort(key=lambda line: line[1].mean or 0.0, reverse=kind.higher_is_better)
    title = f"{kind.name.capitalize()} against {BASELINE} ({column_text(column)})"
    better = "right" if kind.higher_is_better else "left"
    caption = f"Mean over seeds; better is to the {better}. Tests are corrected for their number, intervals not."
    wide = not beside or len(lines) > MANY or max(len(label) for label, _ in lines) > SHORT
    return [difference_chart(lines, f"difference--{anchor}", title, f"difference in {kind.axis}", caption, wide)]


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
            name = f"{slug(series)}--{anchor}"
            pictures.append(comparison_chart(curves, name, title, kind, _curves_caption(curves, width, kind)))
    return [*pictures, *_time_pictures(table, anchor, key)]


def _time_pictures(table: Table, anchor: str, key: str) -> list[Picture]:
    """Charts of the primary metric against training time: one or none. Cost decides how far an hour gets."""
    curves, kind = time_curves(table.rows, f"valid_{key}"), metric(key)
    if len({curve.look for curve in curves}) < 2:
        return []
    longest = max(curve.steps[-1] for curve in curves)
    size, unit = next((size, unit) for least, size, unit in UNITS_OF_TIME if longest >= least)
    curves = [replace(curve, steps=curve.steps / size) for curve in curves]
    title = f"Validation {kind.name} against training time"
    caption = f"{OVER_SEEDS} {SPEED}" if any(curve.seeds > 1 for curve in curves) else SPEED
    name = f"valid-{slug(key)}-against-time--{anchor}"
    return [comparison_chart(curves, name, title, kind, caption, against=f"training time ({unit})")]


def _curves_caption(curves: list[Curve], width: int, kind: Metric) -> str:
    parts = [f"Each point is the mean over {width:,} steps." if width else "Points are logged steps, not smoothed."]
    parts += [OVER_SEEDS] if any(curve.seeds > 1 for curve in curves) else []
    scale = "The logarithmic scale" if kind.logarithmic else "The scale"
    return " ".join([*parts, f"{scale} fits the last {1 - kind.skipped:.0%} of training."])


def _diagnostic_pictures(table: Table, anchor: str, diagnostic: str) -> list[Picture]:
    """Charts of a number that layers log: one, or none where no row has it."""
    title, axis, most = DIAGNOSTICS[diagnostic]
    panels = {full_label(row, table.rows): diagnostic_curves(row, diagnostic) for row in table.rows}
    panels = {label: curves for label, curves in panels.items() if curves}
    seeds = {curve.seeds for curves in panels.values() for curve in curves}
    counts = " to ".join(map(str, sorted({min(seeds, default=0), max(seeds, default=0)})))
    caption = f"Mean over {counts} seeds." if max(seeds, default=0) > 1 else ""
    return [diagnostic_chart(panels, f"{diagnostic}--{anchor}", title, axis, caption, most)] if panels else []


def _layer_pictures(table: Table, anchor: str) -> list[Picture]:
    splits = sorted({split for row in table.rows for run in row.runs for split in run.head_layers})
    pictures = []
    for split in splits:
        for key, (title, axis, meaning) in LAYER_CHARTS.items():
            curves = layer_curves(table.rows, split, key)
            if curves:
                caption = f"{meaning} {OVER_SEEDS}" if any(curve.seeds > 1 for curve in curves) else meaning
                name = f"{slug(key)}-per-layer-{slug(split)}--{anchor}"
                pictures.append(layer_chart(curves, name, f"{title}, {split} split", axis, caption))
    return pictures


def result_of(run: Run) -> str:
    """Return the number of a run that a paper would quote."""
    if not run.completed:
        return DASH
    primary = str(run.summary.get("primary"))
    measured = {column: values[primary] for column, values in evaluations(run).items() if primary in values}
    columns = quoted_columns(task_behind(str(run.field("task")), primary))
    column = next((column for column in columns if column in measured), None)
    if column is None:
        return DASH
    value = metric_text(number(measured[column]), primary, unit=True)
    return f"{column[0]} {metric(primary).short} {value} ({protocol_text(column)})"


def headline(table: Table) -> str:
    """The main result of a table in a sentence, and reasons to doubt it; empty where there is nothing to
    compare."""
    for column in quoted_columns(table.rows[0].task):
        cells = [(row, cell.mean) for row in table.rows if (cell := row.cell(column))]
        finite = [(row, mean) for row, mean in cells if math.isfinite(mean) and not row.diverged]
        protocols = {protocol for row in table.rows for protocol in row.protocols(column)}
        if len(finite) > 1 and len(protocols) == 1 and not several_models(table.rows):
            return _sentence(table, column, finite)
    return ""


def _sentence(table: Table, column: Column, means: list[tuple[Row, float]]) -> str:
    kind = metric(table.primary)
    ordered = sorted(means, key=lambda item: item[1], reverse=kind.higher_is_better)
    (first, value), second = ordered[:2]
    baselines = baselines_of(first, [row for row, _ in means], across_settings=table.own_settings)
    fair = [item for item in ordered[1:] if not first.is_baseline and any(item[0] is row for row in baselines)]
    baseline, against = (fair or [second])[0]
    labels = [row_label(row, table.rows) for row in (first, baseline)]
    values = [metric_text(mean, table.primary, unit=True) for mean in (value, against)]
    what = f"{column[0]} {kind.name} ({protocol_text(column)})"
    if table.own_settings:
        what += ", each attention at its best settings by validation"
    if values[0] == values[1]:
        return f"No difference in {what}: {labels[0]} and {labels[1]} with {values[0]}."
    change = change_text(value, against, table.primary)
    doubt = _doubt(table, column, first, baseline)
    first_is = "Highest" if kind.higher_is_better else "Lowest"
    sentence = (
        f"{first_is} {what}: {labels[0]} with {values[0]}, against {values[1]} for {labels[1]} ({change}){doubt}."
    )
    return " ".join([sentence, *(f"But {reason}." for reason in misleading(first, table.rows))])


def _doubt(table: Table, column: Column, first: Row, baseline: Row) -> str:
    """Reasons to doubt the sentence: a single seed, other settings, no test, or a test without a finding."""
    if min(first.n, baseline.n) == 1:
        return "; a single seed, so no claim yet"
    if not table.own_settings and not same_setting(first, baseline):
        return "; at different settings, so no test"
    rows = {id(first), id(baseline)}
    for pair in pairs(table.rows, columns_of(table.rows), across_settings=table.own_settings):
        (softmax,) = baselines_of(pair.row, table.rows, across_settings=table.own_settings)
        if pair.column == column and {id(pair.row), id(softmax)} == rows:
            if pair.p is None:
                return f"; {pair.difference.reason}"
            found = (
                "" if pair.p < SIGNIFICANT else f"{verdict(pair.difference, table.primary, pair.p, pair.equivalence)}, "
            )
            return f"; {found}{p_text(pair.p)}"
    return "; not tested against each other"

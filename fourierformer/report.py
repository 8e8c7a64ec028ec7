"""One self-contained HTML page about a set of runs: tables, curves, states, where they ran, and how to repeat them."""

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fourierformer.plots import Key, comparison_chart, layer_legend, legend, radius_chart
from fourierformer.results import Run, Table, comparison, tables
from fourierformer.results.comparison import Row, evaluations, row_label
from fourierformer.results.curves import Curve, metric_curves, radius_curves, validation_metric
from fourierformer.results.layout import DASH, TEXT_COLUMNS, duration_text
from fourierformer.results.metrics import Column, Metric, change_text, metric, metric_text
from fourierformer.results.runs import number
from fourierformer.rundir import atomic_write_text

TEMPLATES = Path(__file__).parent / "templates"
# the number a paper would quote comes first
HEADLINES: tuple[Column, ...] = tuple(
    (split, protocol)
    for split in ("test", "valid")
    for protocol in ("sliding", "segment", "best", "last", "ema_best", "ema_last")
)
UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Chart:
    svg: str
    title: str
    caption: str
    keys: list[Key]


@dataclass(frozen=True)
class Section:
    """One table with everything that explains it."""

    table: Table
    headline: str
    charts: list[Chart]
    radii: list[Chart]


def write_report(runs: Iterable[Run], path: str | Path) -> Path:
    """Renders the page and puts it in place whole. Returns its path."""
    runs, path = list(runs), Path(path)
    html = render(runs, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, html)
    return path


def render(runs: list[Run], made: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # names, errors and tracebacks come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        made=made,
        counts=sorted(Counter(run.state for run in runs).items(), key=lambda item: (item[0] != "completed", item)),
        sections=[_section(table, i) for i, table in enumerate(tables(comparison(runs)))],
        root=_root(runs),
        runs=[(run, *_line(run)) for run in sorted(runs, key=lambda run: (run.completed, str(run.path)))],
        origin=origin(runs),
        commands=commands(runs),
        text_columns=TEXT_COLUMNS,
    )


def headline(table: Table) -> str:
    """The one sentence a reader came for; empty where there is nothing to compare."""
    for column in HEADLINES:
        cells = {row_label(row, table.rows): cell.mean for row in table.rows if (cell := row.cell(column))}
        finite = {label: mean for label, mean in cells.items() if math.isfinite(mean)}
        protocols = {protocol for row in table.rows for protocol in row.protocols(column)}
        if len(finite) < 2 or len(protocols) != 1 or len({row.model for row in table.rows}) != 1:
            continue
        return _sentence(table, column, finite)
    return ""


def _sentence(table: Table, column: Column, means: dict[str, float]) -> str:
    kind = metric(table.primary)
    first, second = sorted(means, key=means.get, reverse=kind.higher_is_better)[:2]
    baseline = "softmax" if "softmax" in means and first != "softmax" else second
    values = [metric_text(means[label], table.primary, unit=True) for label in (first, baseline)]
    what = f"{column[0]} {kind.name} ({_spoken(column)})"
    if values[0] == values[1]:
        return f"No difference in {what}: {first} and {baseline} with {values[0]}."
    change = change_text(means[first], means[baseline], table.primary)
    single = min(row.n for row in table.rows if row_label(row, table.rows) in (first, baseline)) == 1
    doubt = "; a single seed, so no claim yet" if single else ""
    first_is = "Highest" if kind.higher_is_better else "Lowest"
    return f"{first_is} {what}: {first} with {values[0]}, against {values[1]} for {baseline} ({change}){doubt}."


def _spoken(column: Column) -> str:
    return column[1].replace("_", " ")


def origin(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Where the runs come from: one line per fact, with every value it took and how often where runs differ."""
    found: dict[str, Counter] = {}
    runs = [run for run in runs if run.meta]
    for run in runs:
        for name, value in _facts(run).items():
            found.setdefault(name, Counter())[value] += 1
    lines = []
    for name, values in found.items():
        agree = len(values) == 1 and values.total() == len(runs)
        lines.append(
            (
                name,
                "; ".join(
                    value if agree else f"{value} ({n} of {len(runs)} runs)" for value, n in values.most_common()
                ),
            )
        )
    return lines


def commands(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """The distinct command lines and how many runs each made (a sweep is one command)."""
    return list(Counter(str(run.meta["command"]) for run in runs if run.meta.get("command")).items())


def _facts(run: Run) -> dict[str, str]:
    meta = run.meta
    commit = str(meta.get("commit") or UNKNOWN)
    versions = meta.get("versions") if isinstance(meta.get("versions"), dict) else {}
    gpus = Counter(map(str, meta.get("gpus") or [])) if isinstance(meta.get("gpus"), list) else {}
    changed = " with uncommitted changes (dirty.diff in the run directory)" if meta.get("dirty") else ""
    facts = {
        "commit": commit + changed,
        "GPU": ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "none",
        "CPU": f"{meta.get('cpu') or UNKNOWN}, {meta.get('cpus', '?')} cores",
        "attention backend": str((run.summary or {}).get("attention_backend") or UNKNOWN),
        "platform": str(meta.get("platform") or UNKNOWN),
        "Python": str(meta.get("python") or UNKNOWN),
    }
    return facts | {str(name): str(version) for name, version in versions.items() if version}


def _root(runs: list[Run]) -> Path:
    """The folder all runs lie under: said once instead of in every line."""
    return Path(os.path.commonpath([run.path.absolute().parent for run in runs])) if runs else Path()


def _line(run: Run) -> tuple[str, str]:
    """(time, result) of one run; the result is the first of HEADLINES it has."""
    if not run.completed:
        return DASH, DASH
    primary = str(run.summary.get("primary"))
    measured = {column: values[primary] for column, values in evaluations(run).items() if primary in values}
    column = next((column for column in HEADLINES if column in measured), None)
    result = DASH
    if column:
        value = metric_text(number(measured[column]), primary, unit=True)
        result = f"{column[0]} {metric(primary).short} {value} ({_spoken(column)})"
    return duration_text(number(run.summary.get("seconds"))), result


def _section(table: Table, number: int) -> Section:
    key = validation_metric(table.rows, table.primary)
    wanted = (
        ("train_loss", "Training loss", metric("loss")),
        (f"valid_{key}", f"Validation {metric(key).name}", metric(key)),
        (f"ema_valid_{key}", f"Validation {metric(key).name}, averaged weights", metric(key)),
    )
    charts = []
    for series, title, kind in wanted:
        curves, width = metric_curves(table.rows, series)
        if curves:
            svg = comparison_chart(curves, f"chart-{number}-{series.replace('_', '-')}", title, kind)
            charts.append(Chart(svg, title, _caption(curves, width, kind), legend(curves)))
    radii = [chart for i, row in enumerate(table.rows) for chart in _radii(row, table.rows, f"radius-{number}-{i}")]
    return Section(table, headline(table), charts, radii)


def _radii(row: Row, rows: list[Row], name: str) -> list[Chart]:
    curves = radius_curves(row)
    if not curves:
        return []
    title = f"Learned radius per layer, {row_label(row, rows)}"
    seeds = max(curve.seeds for curve in curves)
    caption = f"Mean over {seeds} seeds." if seeds > 1 else ""
    return [Chart(radius_chart(curves, name, title), title, caption, layer_legend(curves))]


def _caption(curves: list[Curve], width: int, kind: Metric) -> str:
    parts = [f"Each point is the mean over {width:,} steps." if width else "Every logged step, not smoothed."]
    if any(curve.seeds > 1 for curve in curves):
        parts.append("Line: mean over seeds; band: from the lowest to the highest seed.")
    scale = "The logarithmic scale" if kind.logarithmic else "The scale"
    parts.append(f"{scale} fits the last {1 - kind.skipped:.0%} of training.")
    return " ".join(parts)

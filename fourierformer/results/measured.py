"""Committed evidence: finished runs as lines of results/measured/<name>.csv, which read back as runs.

A line has every number of the run's summary, of its evaluations and its layers, and their origin, so
that tables and charts can be made without the run directory. A run that should not be evidence is refused with the
reason.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from fourierformer.config import flatten
from fourierformer.errors import SetupError
from fourierformer.files import read_csv, write_csv
from fourierformer.provenance import MEASURED, without_folders
from fourierformer.results.collection import collect
from fourierformer.results.runs import SCHEMA, Run

# the first columns, by which a file of runs is recognised: benchmarks lie in the same folder
NAMES = ("run", "experiment", "model", "attention", "data", "seed")
TEXT = frozenset(
    {*NAMES, "task", "primary", "config_hash", "group", "unit", "attention_backend", "commit", "started", "command"}
    | {"python", "platform", "cpu", "instructions"}
) - {"seed"}
TEXT_GROUPS = ("settings.", "versions.")  # all other columns are JSON
FACTS = ("commit", "dirty", "started", "command", "cpu", "cpus", "gpus", "python", "platform")
VERSIONS = ("torch", "triton", "timm")
NESTED = ("results", "heads", "diagnostics", "settings", "best", "versions")  # written as results.test.sliding.ppl
EVALUATIONS = "evaluations"  # rows of metrics.jsonl
MOST_EVALUATIONS = 40  # of a run: with the numbers of 16 layers some 30 kB, in a file that git keeps
DIGITS = 6  # of a number in them
CONFIG = "config"
# columns of long JSON stand behind those that are read by eye
LAST = ("starts", "head_origin", "head_layers", EVALUATIONS, CONFIG)


def refusal(run: Run, include_dirty: bool = False, include_debug: bool = False) -> str:
    """Why this run is no evidence; '' if it is."""
    if not run.completed:
        return "; ".join([run.state, *run.remarks()])
    if run.field("debug") and not include_debug:
        return "a debug run (--include-debug takes it)"
    if run.field("commit") is None and not include_dirty:
        return "its commit is unknown (--include-dirty takes it)"
    if run.dirty and not include_dirty:
        return "made with uncommitted changes (--include-dirty takes it)"
    return ""


def csv_row(run: Run) -> dict[str, str]:
    """Every number of a finished run, and where it comes from."""
    summary = {key: value for key, value in run.summary.items() if key not in (*NESTED, *LAST, "schema", "logged_rows")}
    summary |= {key: run.summary.get(key) for key in ("results", "best")}
    meta = {key: run.meta.get(key, run.summary.get(key)) for key in FACTS}
    versions = known if isinstance(known := run.meta.get("versions"), dict) else {}
    origin: dict[str, object] = {"dirty": run.dirty if run.field("dirty") is not None else None}
    origin["command"] = without_folders(str(run.meta.get("command") or ""))
    origin["instructions"] = str(run.meta.get("cpu") or "").partition(", ")[2]
    names = {key: run.field(key) for key in NAMES} | {"run": run.name}
    names |= {"settings": run.settings, "heads": run.heads, "diagnostics": run.diagnostics}
    names |= {"versions": {name: versions.get(name) for name in VERSIONS}}
    long = [("starts", run.starts), ("head_origin", run.head_origin), ("head_layers", run.head_layers)]
    long += [(EVALUATIONS, _evaluations(run)), (CONFIG, run.config)]
    values = [*flatten(names | summary | meta | origin), *((key, value) for key, value in long if value)]
    return {key: _written(key, value) for key, value in values if value is not None and value not in ({}, "")}


def write_measured(runs: Iterable[Run], path: Path) -> tuple[int, int]:
    """Adds runs to a file, in place of older lines of the same run: (how many now, how many stood there and stay).
    SetupError for a line of another run of the same name, which run_dir gives."""
    rows = {row["run"]: row for row in map(csv_row, runs)}
    lines = _lines(path) if path.exists() else []
    before = [row for row in lines if row["run"] not in rows]
    for row in lines:
        if row.get("group") != rows.get(row["run"], row).get("group"):
            raise SetupError(
                f"{path} has another run named {row['run']}: rename a run directory, or choose another file"
            )
    ordered = sorted([*before, *rows.values()], key=_order)
    columns = dict.fromkeys([*NAMES, *(key for row in ordered for key, value in row.items() if value)])
    write_csv(path, ordered, columns=sorted(columns, key=lambda name: LAST.index(name) if name in LAST else -1))
    return len(ordered), len(before)


def read_measured(path: Path) -> list[Run]:
    """The runs of a file that `write_measured` made."""
    return [_run(row, path, number) for number, row in enumerate(_lines(path), 2)]


def is_measured(path: Path) -> bool:
    return tuple(read_csv(path).columns)[: len(NAMES)] == NAMES


def gather(sources: Iterable[str | Path]) -> list[Run]:
    """Runs from folders of run directories and from CSV files, each once; the directory wins, since it has more.

    One of another commit is another run; tables say which of the two they count. Of several CSV files those of other
    measurements are left out, so that results/measured/*.csv can be named.
    """
    paths = [Path(source) for source in sources]
    files = [path for path in paths if path.suffix == ".csv"]
    if missing := [file for file in files if not file.is_file()]:
        raise SetupError(f"{missing[0]}: no such file")
    if others := [path for path in paths if path not in files and path.is_file()]:
        raise SetupError(f"{others[0]}: neither a folder of runs nor a .csv file")
    runs = collect(path for path in paths if path not in files)
    known = {_identity(run) for run in runs}
    of_runs = [file for file in files if is_measured(file)] or files  # if none is, reading the first raises the error
    from_files = {_identity(run): run for file in of_runs for run in read_measured(file)}
    return [*runs, *(run for identity, run in from_files.items() if identity not in known)]


def _identity(run: Run) -> tuple:
    return run.name, run.field("group"), run.field("commit")


def committed() -> list[Path]:
    """The files of runs in results/measured; it also holds benchmarks."""
    return [path for path in sorted(MEASURED.glob("*.csv")) if is_measured(path)]


def _order(row: dict[str, str]) -> tuple:
    return *(row.get(name, "") for name in NAMES[1:5]), int(row.get("seed", 0)), row["run"]


def _evaluations(run: Run) -> list[dict]:
    """The rows of metrics.jsonl with a validation, each n-th where they are too many, the last one always."""
    rows = [row for row in run.metrics if any(key.startswith("valid_") for key in row)]
    apart = max(1, -(-len(rows) // MOST_EVALUATIONS))
    return [{key: _short(value) for key, value in row.items()} for row in rows[::-1][::apart][::-1]]


def _short(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _is_text(key: str) -> bool:
    return key in TEXT or key.startswith(TEXT_GROUPS)


def _written(key: str, value) -> str:
    return str(value) if _is_text(key) else json.dumps(value)


def _lines(path: Path) -> list[dict[str, str]]:
    if not is_measured(path):
        raise SetupError(f"{path} is no file of runs: it does not begin with {','.join(NAMES)}. Choose another name.")
    return [{key: value for key, value in row.items() if key and value} for row in read_csv(path).rows]


def _run(row: dict[str, str], path: Path, number: int) -> Run:
    summary: dict = {}
    try:
        for key, text in row.items():
            _put(summary, key.split("."), text if _is_text(key) else json.loads(text))
        _check_rows(EVALUATIONS, summary.get(EVALUATIONS, []))
        for split, layers in summary.get("head_layers", {}).items():
            _check_rows(f"head_layers, {split}", layers)
    except (ValueError, AttributeError, TypeError) as error:
        raise SetupError(f"{path}, line {number}: {error}. Restore it from git.") from None
    meta = {key: summary[key] for key in (*FACTS, "versions") if key in summary}
    summary = {"schema": SCHEMA, "settings": {}, "heads": {}, "diagnostics": {}} | summary
    return Run(path.with_suffix("") / summary["run"], "completed", {}, summary, meta)


def _check_rows(name: str, rows) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name} is no list of numbers by name")


def _put(target: dict, keys: list[str], value) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    target[keys[-1]] = value

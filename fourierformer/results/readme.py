"""README's generated parts: results from the committed files alone, so that anyone gets the same text, and the table
of attention choices."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import atomic_write_text
from fourierformer.results.comparison import comparison
from fourierformer.results.evidence import evidence
from fourierformer.results.layout import Table, columns_of, tables
from fourierformer.results.measured import MEASURED, is_measured, read_measured
from fourierformer.results.mechanisms import mechanism_table
from fourierformer.results.redundancy import head_tables
from fourierformer.results.runs import Run
from fourierformer.results.significance import significance_lines
from fourierformer.results.tables import markdown_of

NOTHING = "No measured runs are committed yet."
MANY_ROWS = 4  # configurations; a page of comparisons is then left to the command that prints them


def section(folder: Path = MEASURED) -> str:
    """What belongs between the markers: per file of runs the tables, and where the numbers come from."""
    parts = []
    for path in sorted(folder.glob("*.csv")):
        if not is_measured(path):
            continue
        runs = read_measured(path)
        rows = comparison(runs)
        shown = [_without_comparisons(t, path.name) if len(t.rows) > MANY_ROWS else t for t in tables(rows)]
        parts.append(
            f"### {path.stem}\n\n{markdown_of([*shown, *head_tables(rows)])}\n"
            f"{_folded('Every number with its interval', markdown_of(evidence(rows)))}\n"
            f"From `results/measured/{path.name}`: {origin(runs)}."
        )
    return "\n\n".join(parts) or NOTHING


def _without_comparisons(table: Table, name: str) -> Table:
    said = significance_lines(table.rows, columns_of(table.rows))
    rest = [note for note in table.notes if note not in said]
    where = f"python scripts/make_tables.py results/measured/{name}"
    return replace(table, notes=[*rest, f"comparisons with the baseline, Holm-corrected: {where}"])


def _folded(title: str, text: str) -> str:
    """As GitHub shows it: a line that opens."""
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def origin(runs: Iterable[Run]) -> str:
    """Commit, machine and torch of all runs, with the number of runs where they differ."""
    runs = list(runs)
    machines = [_machine(run) for run in runs]
    commits = [f"commit {str(run.field('commit') or 'unknown')[:8]}" for run in runs]
    torch = [f"torch {(run.meta.get('versions') or {}).get('torch', 'unknown')}" for run in runs]
    return f"{len(runs)} runs, {', '.join(_counted(facts) for facts in (commits, machines, torch))}"


def updated(text: str, folder: Path = MEASURED) -> str:
    """The README with its generated parts written anew."""
    for name, part in (("results", section(folder)), ("attention", mechanism_table())):
        text = _replaced(text, name, part)
    return text


def _replaced(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SetupError(f"it needs one line {begin} and below it one line {end}: what is between them is generated")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.split(end)[1]}"


def write_readme(path: Path, folder: Path = MEASURED) -> None:
    if not path.is_file():
        raise SetupError(f"{path}: no such file")
    text = path.read_text(encoding="utf-8")
    try:
        atomic_write_text(path, updated(text, folder))
    except SetupError as error:
        raise SetupError(f"{path}: {error}") from None


def _machine(run: Run) -> str:
    gpus = run.meta.get("gpus") or []
    names = ", ".join(f"{count} x {name}" for name, count in Counter(map(str, gpus)).items())
    return names or f"{run.meta.get('cpu') or 'unknown CPU'} ({run.meta.get('cpus', '?')} cores)"


def _counted(facts: list[str]) -> str:
    counts = Counter(facts)
    return next(iter(counts)) if len(counts) == 1 else " and ".join(f"{fact} ({n})" for fact, n in counts.items())

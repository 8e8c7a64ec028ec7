"""The generated parts of README and docs/, from committed files and the code alone, so that anyone gets the same text.

A generated part stands between two comments, `<!-- name:begin -->` and `<!-- name:end -->`; what is around it is
written by hand. `make docs` writes all of them, and a test fails where one is stale.
"""

import ast
import importlib.util
import inspect
import pydoc
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.files import atomic_write_text
from fourierformer.provenance import MEASURED, REPOSITORY
from fourierformer.results.checks import CHECKS, PLANNED, check_table
from fourierformer.results.comparison import comparison
from fourierformer.results.faults import fault_table
from fourierformer.results.formats import Table, markdown_grid, markdown_of, text_of
from fourierformer.results.headline import findings, headline_table
from fourierformer.results.hypotheses import EVIDENCE, hypothesis_table
from fourierformer.results.intervals import interval_tables
from fourierformer.results.layers import layer_tables
from fourierformer.results.measured import is_measured, read_measured
from fourierformer.results.ranking import rankings
from fourierformer.results.runs import Run
from fourierformer.results.tables import head_tables, tables

NOTHING = "No measured runs are committed yet."
QUICKSTART = "quickstart.csv"  # the runs of `make train`
MANY_ROWS = 4  # configurations; a page of comparisons is then left to the command that prints them
# the small language model and DeiT-tiny: where the added parameters of an attention are counted
LANGUAGE = Geometry(dim=128, heads=8, length=256, causal=True)
VISION = Geometry(dim=192, heads=3, length=197, causal=False, bias=True, grid=(14, 14), prefix=1)
MECHANISMS = ("`attention=`", "idea", "for", "time", "state", "parameters", "source")
MECHANISMS_NOTE = """\
N tokens, D coordinates per head, C = H D channels, M features. Time is per layer and sequence. State: the numbers per
layer that decoding one more token needs. Parameters: beyond the four projections, per layer of `lm_small` (`deit_tiny`
for what only vision can use)."""


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
            f"## {path.stem}\n\n{markdown_of([*shown, *head_tables(rows)])}\n"
            f"{_folded('Every number with its interval', interval_tables(rows))}\n"
            f"From `results/measured/{path.name}`: {origin(runs)}."
        )
    return "\n\n".join(parts) or NOTHING


def _without_comparisons(table: Table, name: str) -> Table:
    where = f"python scripts/make_tables.py results/measured/{name}"
    return replace(table, findings=[f"comparisons with the baseline, Holm-corrected: {where}"])


def _folded(title: str, tables: list[Table]) -> str:
    """As GitHub shows it: a line that opens. Nothing where there is no table."""
    return f"<details><summary>{title}</summary>\n\n{markdown_of(tables)}\n</details>\n" if tables else ""


def origin(runs: Iterable[Run]) -> str:
    """Commit, machine and torch of all runs, with the number of runs where they differ."""
    runs = list(runs)
    machines = [_machine(run) for run in runs]
    commits = [f"commit {str(run.field('commit') or 'unknown')[:8]}" for run in runs]
    torch = [f"torch {(run.meta.get('versions') or {}).get('torch', 'unknown')}" for run in runs]
    return f"{len(runs)} runs, {', '.join(_counted(facts) for facts in (commits, machines, torch))}"


def quickstart(folder: Path = MEASURED) -> str:
    """The table that `make train` ends with, as it prints it."""
    (table,) = tables(comparison(read_measured(folder / QUICKSTART)))
    grid = text_of([replace(table, protocols=[], notes=[], findings=[], scale=[])])
    return f"```text\n{grid.strip()}\n```"


def headline(folder: Path = MEASURED) -> str:
    """README's result: each attention at each learning rate, with the share of the weights that tokens get."""
    found = findings(folder)
    runs = [run for finding in found for row in finding.by_rate.values() for run in row.runs]
    return f"{headline_table(found)}\n\nFrom `results/measured/{PLANNED}.csv` and `{CHECKS}.csv`: {origin(runs)}."


def evidence(folder: Path = MEASURED) -> str:
    """The runs of docs/results.md and what they say about its hypotheses; more of them is in docs/measurements.md."""
    parts = []
    for name, column in EVIDENCE.items():
        path = folder / f"{name}.csv"
        if path.exists():
            runs = read_measured(path)
            rows = comparison(runs)
            numbers = [replace(table, notes=[], findings=[], protocols=[], scale=[]) for table in tables(rows)]
            said = [*numbers, hypothesis_table(rows, column), *head_tables(rows), *layer_tables(rows)]
            shown = markdown_of(said)
            parts.append(f"{shown}\nFrom `results/measured/{path.name}`: {origin(runs)}.")
    return "\n\n".join(parts) or NOTHING


def checks(folder: Path = MEASURED) -> str:
    """What docs/results.md asked after its plan, as measured so far."""
    table = check_table(folder)
    if table is None:
        return NOTHING
    runs = [run for row in table.rows for run in row.runs]
    return f"{markdown_of([table])}\nFrom `results/measured/{CHECKS}.csv`: {origin(runs)}."


def mechanism_table() -> str:
    """The choices of attention, from what the mechanisms say about themselves: one row per name."""
    grid = markdown_grid(MECHANISMS, map(_mechanism_line, attention.available()))
    return f"{grid}\n\n{MECHANISMS_NOTE}"


def _mechanism_line(name: str) -> tuple[str, ...]:
    cls = attention.mechanism(name)
    language = name in attention.available(causal=True, grid=False)
    vision = name in attention.available(causal=False)
    where = " and ".join(["language"] * language + ["vision"] * vision)
    added = f"{_added(name, LANGUAGE if language else VISION):+,}".replace("+0", "0")
    return f"`{name}`", attention.idea(name), where, cls.cost, cls.state, added, cls.source


def _added(name: str, geometry: Geometry) -> int:
    """Parameters beyond (or below) the four projections of dim x dim."""
    with torch.device("meta"):
        layer, plain = attention.build(name, geometry), attention.build("softmax", geometry)
    return _count(layer) - _count(plain)


def _count(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def reference_table(text: str) -> str:
    """One row for every object that a comment `<!-- ::: dotted.name -->` of the document names."""
    rows = []
    for name in public_names(text):
        file, documentation = described(name)
        source = file.relative_to(REPOSITORY)
        first = " ".join(documentation.split("\n\n")[0].split())
        rows.append((f"[`{name}`](../{source.as_posix()})", first))
    return markdown_grid(("name", "what it is for"), rows)


def described(name: str) -> tuple[Path, str]:
    """File and documentation of a public object, or of a module whose library is not installed."""
    try:
        named: Any = pydoc.locate(name)
    except pydoc.ErrorDuringImport:
        module = importlib.util.find_spec(name)
        assert module is not None  # it was there to be imported
        assert module.origin is not None
        file = Path(module.origin)
        return file, ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    if named is None:
        raise SetupError(f"it names {name}, which cannot be imported")
    return Path(inspect.getfile(named)), inspect.getdoc(named) or ""


def public_names(text: str) -> list[str]:
    return re.findall(r"^<!-- ::: ([\w.]+) -->$", text, flags=re.M)


Part = Callable[[str, Path], str]  # from the document's text and the folder of measured runs
DOCUMENTS: dict[str, dict[str, Part]] = {
    "README.md": {"headline": lambda _, folder: headline(folder)},
    "docs/reproduce.md": {"quickstart": lambda _, folder: quickstart(folder)},
    "docs/attention.md": {
        "attention": lambda *_: mechanism_table(),
        "ranking": lambda _, folder: rankings(folder),
    },
    "docs/measurements.md": {"results": lambda _, folder: section(folder)},
    "docs/results.md": {
        "checks": lambda _, folder: checks(folder),
        "evidence": lambda _, folder: evidence(folder),
    },
    "docs/reliability.md": {"faults": lambda _, folder: fault_table(folder)},
    "docs/reference.md": {"reference": lambda text, _: reference_table(text)},
}


def updated(text: str, parts: dict[str, Part], folder: Path = MEASURED) -> str:
    """A document with its generated parts written anew."""
    for name, part in parts.items():
        text = _replaced(text, name, part(text, folder))
    return text


def _replaced(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SetupError(f"it needs one line {begin} and below it one line {end}: what is between them is generated")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.split(end)[1]}"


def write_documents(root: Path, folder: Path = MEASURED) -> None:
    """Every document of DOCUMENTS under `root`; none is written if one of them cannot be."""
    texts = {}
    for name, parts in DOCUMENTS.items():
        path = root / name
        if not path.is_file():
            raise SetupError(f"{path}: no such file")
        try:
            texts[path] = updated(path.read_text(encoding="utf-8"), parts, folder)
        except SetupError as error:
            raise SetupError(f"{path}: {error}") from None
    for path, text in texts.items():
        atomic_write_text(path, text)


def _machine(run: Run) -> str:
    gpus = run.meta.get("gpus") or []
    names = ", ".join(f"{count} x {name}" for name, count in Counter(map(str, gpus)).items())
    return names or f"{run.meta.get('cpu') or 'unknown CPU'} ({run.meta.get('cpus', '?')} cores)"


def _counted(facts: list[str]) -> str:
    counts = Counter(facts)
    return next(iter(counts)) if len(counts) == 1 else " and ".join(f"{fact} ({n})" for fact, n in counts.items())

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
from fourierformer.files import atomic_write_text, read_csv
from fourierformer.provenance import MEASURED, REPOSITORY
from fourierformer.results.comparison import comparison
from fourierformer.results.faults import fault_table
from fourierformer.results.formats import DASH, markdown_grid, text_of
from fourierformer.results.measured import is_measured, read_measured
from fourierformer.results.runs import Run
from fourierformer.results.tables import tables

NOTHING = "No measured runs are committed yet."
QUICKSTART = "quickstart.csv"  # the runs of `make train`
STUDIES = REPOSITORY / "studies"
# the small language model and DeiT-tiny: where the added parameters of an attention are counted
LANGUAGE = Geometry(dim=128, heads=8, length=256, causal=True)
VISION = Geometry(dim=192, heads=3, length=197, causal=False, bias=True, grid=(14, 14), prefix=1)
MECHANISMS = ("`attention=`", "idea", "for", "time", "state", "parameters", "source")
MECHANISMS_NOTE = """\
N tokens, H heads of D coordinates, C = H D channels, M features, C(n, k) a binomial coefficient; lower-case letters are
knobs of the mechanism. Time is per layer and sequence. State: the numbers per layer that decoding one more token
needs. Parameters: beyond the four projections, per layer of `lm_small` (`deit_tiny` for what only vision can use).
[Switches of the model](#switches-of-the-model) add the same to every row."""


def measured_files(folder: Path = MEASURED) -> str:
    """A line for every committed file of numbers: its content, commit, and how to make it again."""
    studies = sorted(STUDIES.glob("*/*.csv")) if folder == MEASURED else []
    lines = [_file_line(path) for path in [*sorted(folder.glob("*.csv")), *studies]]
    return markdown_grid(("file", "rows", "content", "commit", "made by"), lines) if lines else NOTHING


def _file_line(path: Path) -> tuple[str, str, str, str, str]:
    file = read_csv(path)
    name = path.relative_to(REPOSITORY).as_posix() if path.is_relative_to(REPOSITORY) else path.name
    link = f"[{path.name}](../{name})"
    study = f"[study](../{path.parent.relative_to(REPOSITORY)}/README.md)" if path.is_relative_to(STUDIES) else ""
    if not is_measured(path):
        facts = dict(comment.partition(": ")[::2] for comment in file.comments)
        content = f"{', '.join(file.columns[:5])}, ..."
        in_rows = ", ".join(dict.fromkeys(filter(None, (row.get("commit") for row in file.rows))))
        commit = facts.get("commit") or in_rows or DASH
        return link, str(len(file.rows)), content, commit, study or _program(facts.get("command"))
    runs = read_measured(path)
    models = ", ".join(dict.fromkeys(f"{run.field('model')} on {run.field('data')}" for run in runs))
    kinds = len({run.field("attention") for run in runs})
    commits = ", ".join(dict.fromkeys(str(run.field("commit"))[:8] for run in runs))
    content = f"runs of {models}; {kinds} attention{'s' if kinds > 1 else ''}"
    return link, str(len(runs)), content, commits, study or _program(str(runs[0].meta.get("command") or ""))


def _program(command: str | None) -> str:
    """The program and the sweep of a command; the file has the rest."""
    words = [word for word in (command or "").split() if not re.match(r"[A-Z_]+=", word)]  # without the environment
    sweep = [word for word in words if word.startswith(("sweep=", "scale="))]
    return f"`{' '.join([*(words[:3] if '-m' in words else words[:2]), *sweep])}`" if words else DASH


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


def mechanism_table() -> str:
    """The choices of attention, from the attributes of their classes: one row per name."""
    grid = markdown_grid(MECHANISMS, map(_mechanism_line, attention.available()))
    return f"{grid}\n\n{MECHANISMS_NOTE}"


def _mechanism_line(name: str) -> tuple[str, ...]:
    cls = attention.mechanism(name)
    language = name in attention.available(causal=True, grid=False)
    vision = name in attention.available(causal=False)
    where = " and ".join(["text"] * language + ["images"] * vision)
    added = f"{_added(name, LANGUAGE if language else VISION):+,}".replace("+0", "0")
    idea = attention.idea(name).replace("|", r"\|")  # |q - k| is no end of a cell
    return f"`{name}`", idea, where, cls.cost, cls.state, added, cls.source


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


def outside_table(folder: Path) -> str:
    """One line for every suite that `python -m outside` ran; below it where the numbers come from."""
    path = folder / "outside.csv"
    if not path.is_file():
        return NOTHING
    file = read_csv(path)
    columns = ("suite", "shows", "version", "run", "passed", "skipped")
    grid = markdown_grid(columns, [tuple(row[name] for name in columns) for row in file.rows], [True] * 3 + [False] * 3)
    reasons = [f"- {row['suite']}: {row['reasons']}." for row in file.rows if row["reasons"]]
    skipped = "Skipped, with the number of cases:\n\n" + "\n".join(reasons)
    return f"{grid}\n\n{skipped}\n\nFrom `results/measured/{path.name}`: {'; '.join(file.comments)}."


Part = Callable[[str, Path], str]  # from the document's text and the folder of measured runs
DOCUMENTS: dict[str, dict[str, Part]] = {
    "README.md": {"rates": lambda *_: quoted("rates", "rates")},
    "docs/reproduce.md": {"quickstart": lambda _, folder: quickstart(folder)},
    "docs/attention.md": {
        "attention": lambda *_: mechanism_table(),
    },
    "docs/measurements.md": {"files": lambda _, folder: measured_files(folder)},
    "docs/reliability.md": {
        "faults": lambda _, folder: fault_table(folder),
        "outside": lambda _, folder: outside_table(folder),
    },
    "docs/reference.md": {"reference": lambda text, _: reference_table(text)},
}


def quoted(study: str, part: str) -> str:
    """A generated part of the README of a study, for another document."""
    text = (REPOSITORY / "studies" / study / "README.md").read_text(encoding="utf-8")
    found = re.search(f"<!-- {part}:begin -->\n\n(.*?)\n\n<!-- {part}:end -->", text, flags=re.DOTALL)
    if found is None:
        raise SetupError(f"studies/{study}/README.md has no part {part}: run `make studies`")
    return found[1]


def write_parts(path: Path, parts: dict[str, str]) -> None:
    """Writes the generated parts of one document anew."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = replaced(text, name, part)
    atomic_write_text(path, text)


def updated(text: str, parts: dict[str, Part], folder: Path = MEASURED) -> str:
    """A document with its generated parts written anew."""
    for name, part in parts.items():
        text = replaced(text, name, part(text, folder))
    return text


def replaced(text: str, name: str, part: str) -> str:
    """The text with what stands between the two comments of a name replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SetupError(f"it needs one line {begin} and below it one line {end}: what is between them is generated")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.split(end)[1]}"


def write_documents(root: Path) -> None:
    """Every document of DOCUMENTS under `root`; none is written if one of them cannot be."""
    texts = {}
    for name, parts in DOCUMENTS.items():
        path = root / name
        if not path.is_file():
            raise SetupError(f"{path}: no such file")
        try:
            texts[path] = updated(path.read_text(encoding="utf-8"), parts)
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

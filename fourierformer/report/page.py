"""The page: every section, the list of all runs, where they ran, and the files of its charts."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fourierformer.files import atomic_write_text, own_folder
from fourierformer.provenance import split_words, without_secrets
from fourierformer.report.picture import Picture
from fourierformer.report.runs import result_of, run_sections
from fourierformer.report.section import Charts, Section
from fourierformer.results import Run
from fourierformer.results.formats import TEXT_COLUMNS
from fourierformer.results.labels import labels_of_runs
from fourierformer.results.runs import number
from fourierformer.results.tables import duration_text

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).parent / "templates"
WORDS = TEXT_COLUMNS | {"kernel", "shape", "pass", "dtype"}  # stand to the left
MANY_RUNS = 12  # completed runs beyond which their list is folded
STATES = ("completed", "failed", "diverged", "damaged")  # those with a colour of their own
UNKNOWN = "not recorded"


def write_report(
    runs: Iterable[Run],
    path: str | Path,
    further: Iterable[Section] = (),
    figures: Path | None = None,
    maps: bool = False,
) -> Path:
    """Renders the page and writes it whole or not at all. Returns its path.

    `further` sections stand below those of the runs. With `figures` every chart is also saved in that folder, as PNG
    and SVG, which takes as long as the page again. With `maps` it loads models, to show what their heads attend to.
    """
    runs, path = list(runs), Path(path)
    sections = [*run_sections(runs, maps), *further]
    html = render(runs, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, html)
    if figures is not None:
        save_figures(sections, figures)
    return path


def save_figures(sections: Iterable[Section], folder: Path) -> None:
    """Write the charts as files. Files of the same name are replaced; files of former charts stay."""
    folder = own_folder(folder)
    for picture in pictures(sections):
        picture.save(folder)


def pictures(sections: Iterable[Section]) -> list[Picture]:
    parts = [part for section in sections for part in section.parts]
    return [picture for part in parts if isinstance(part, Charts) for picture in part.pictures]


def render(runs: list[Run], made: str, sections: list[Section] | None = None) -> str:
    """Return the page about `runs` with these sections; by default with the sections of the runs."""
    finished, labels = [run for run in runs if run.completed], labels_of_runs(runs)
    unfinished = [run for run in runs if not run.completed and run.state != "set aside"]
    return _template().render(
        made=made,
        counts=sorted(Counter(run.state for run in runs).items(), key=lambda item: (item[0] != "completed", item)),
        sections=run_sections(runs) if sections is None else sections,
        root=_root(runs),
        unfinished=_lines(unfinished, labels),
        finished=_lines(finished, labels),
        many=len(finished) > MANY_RUNS,
        states=STATES,
        origin=origin([*finished, *unfinished]),
        set_aside=_lines([run for run in runs if run.state == "set aside"], labels),
        commands=commands([*finished, *unfinished]),
        words=WORDS,
    )


@cache  # compiled once for all jobs of a sweep
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # names, errors and tracebacks come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _lines(runs: list[Run], labels: dict[Path, str]) -> list[tuple[Run, str, str, str]]:
    """Return (run, the settings in which it differs from others, time, result) of each run."""
    ordered = sorted(runs, key=lambda run: str(run.path))
    seconds = [number(run.summary.get("seconds")) if run.completed else float("nan") for run in ordered]
    return [
        (run, labels.get(run.path, ""), duration_text(time), result_of(run))
        for run, time in zip(ordered, seconds, strict=True)
    ]


def _root(runs: list[Run]) -> Path:
    """The common folder of all runs, which is shown once above their list."""
    return Path(os.path.commonpath([run.path.absolute().parent for run in runs])) if runs else Path()


def origin(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """The origin of the runs: one line per fact, with each value and its count where runs differ."""
    values: dict[str, Counter] = {}
    runs = [run for run in runs if run.meta]
    for run in runs:
        for name, value in _facts(run).items():
            values.setdefault(name, Counter())[value] += 1
    lines = []
    for name, counts in values.items():
        agree = len(counts) == 1 and counts.total() == len(runs)
        texts = [value if agree else f"{value} ({n} of {len(runs)} runs)" for value, n in counts.most_common()]
        lines.append((name, "; ".join(texts)))
    return lines


def commands(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """The command lines that repeat the runs, and how many runs each makes. Commands that differ in the values of keys
    are one sweep where they are all combinations of these values."""
    counts = Counter(without_secrets(str(run.meta["command"])) for run in runs if run.meta.get("command"))
    single = {tuple(split_words(command)): command for command in counts}
    lines = {words: counts[command] for words, command in single.items()}
    for place in reversed(range(max(map(len, lines), default=0))):
        alike: dict[tuple, list[tuple[str, ...]]] = {}
        for words in lines:
            key, equals, _ = words[place].partition("=") if place < len(words) else ("", "", "")
            is_key = equals and not key.startswith(("-", "/"))  # --config-dir=DIR and --config-dir /a=b have one value
            alike.setdefault((words[:place], key, words[place + 1 :]) if is_key else (words,), []).append(words)
        lines = {_with_values(twins, place): sum(lines[words] for words in twins) for twins in alike.values()}
    return [(single.get(words) or shlex.join((*words, "-m")), count) for words, count in lines.items()]


def _with_values(twins: list[tuple[str, ...]], place: int) -> tuple[str, ...]:
    """The words of the first command, with the values of all of them at this place: seed=1,2."""
    first, *others = twins
    if not others:
        return first
    values = ",".join(words[place].partition("=")[2] for words in others)
    return (*first[:place], f"{first[place]},{values}", *first[place + 1 :])


def _facts(run: Run) -> dict[str, str]:
    meta = run.meta
    versions = known if isinstance(known := meta.get("versions"), dict) else {}
    gpus = Counter(map(str, meta.get("gpus") or [])) if isinstance(meta.get("gpus"), list) else {}
    changed = " with uncommitted changes (dirty.diff in the run directory)" if run.dirty else ""
    facts = {
        "commit": str(meta.get("commit") or UNKNOWN) + changed,
        "GPU": ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "none",
        "CPU": f"{meta.get('cpu') or UNKNOWN}, {meta.get('cpus', '?')} cores",
        "attention backend": str(run.summary.get("attention_backend") or UNKNOWN),
        "platform": str(meta.get("platform") or UNKNOWN),
        "Python": str(meta.get("python") or UNKNOWN),
    }
    return facts | {str(name): str(version) for name, version in versions.items() if version}

"""What a page is made of: sections of tables and groups of charts."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fourierformer.plots.picture import Key, Picture
from fourierformer.results import Table
from fourierformer.results.baseline import BASELINE
from fourierformer.results.formats import DASH


@dataclass(frozen=True)
class Sheet:
    """A table as the page shows it, with the lines that stand under it. A folded one is opened by a click."""

    caption: str
    header: list[str]
    body: list[list[str]]
    lines: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # those among the lines that a reader must not overlook
    best: frozenset[tuple[int, int]] = frozenset()
    starts: frozenset[int] = frozenset()
    folded: bool = False


@dataclass(frozen=True)
class Charts:
    """Pictures side by side. With `keys` one legend stands above all of them; small ones are set closer."""

    pictures: list[Picture]
    title: str = ""
    caption: str = ""
    keys: list[Key] = field(default_factory=list)
    small: bool = False


@dataclass(frozen=True)
class Section:
    """`parts` are Sheets and Charts in reading order; `anchor` is unique on the page."""

    title: str
    anchor: str
    parts: Sequence[Sheet | Charts]
    headline: str = ""
    folded: bool = False


def sheet_of(table: Table, caption: str, leave_out: Iterable[str] = ()) -> Sheet:
    """A table of the results; `leave_out` are lines that stand on the page already."""
    lines = [line for line in table.lines if line not in set(leave_out)]
    findings = [line for line in lines if line in table.findings]
    lines = [line for line in lines if line not in findings]
    header, body = _with_differences(table)
    return Sheet(caption, header, body, lines, findings, frozenset(table.best), frozenset(table.starts))


def _with_differences(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and body with the differences to softmax behind the last number that is compared."""
    if not table.differences:
        return table.header, table.body
    place = 1 + max(column for _, column in table.best) if table.best else len(table.header)
    body = [
        [*line[:place], text or DASH, *line[place:]] for line, text in zip(table.body, table.differences, strict=True)
    ]
    return [*table.header[:place], f"against\n{BASELINE}", *table.header[place:]], body


def without_columns(sheet: Sheet, names: Iterable[str]) -> Sheet:
    """Where a column is empty. Not for tables that mark their best values, whose positions would shift."""
    kept = [i for i, name in enumerate(sheet.header) if name not in set(names)]
    header, body = [sheet.header[i] for i in kept], [[line[i] for i in kept] for line in sheet.body]
    return replace(sheet, header=header, body=body)


def slug(text: str) -> str:
    """For anchors and file names: small letters, digits and hyphens, whatever a run calls itself."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def slugs(texts: Iterable[str]) -> list[str]:
    """Each its slug; one that is there already gets a number."""
    names: list[str] = []
    for text in map(slug, texts):
        number, name = 2, text
        while name in names:
            number, name = number + 1, f"{text}-{number}"
        names.append(name)
    return names

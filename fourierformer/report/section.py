"""The parts of a page: sections of tables and groups of charts."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fourierformer.report.picture import Picture
from fourierformer.results import Table


@dataclass(frozen=True)
class Charts:
    """Pictures side by side; small ones are set closer."""

    pictures: list[Picture]
    small: bool = False


@dataclass(frozen=True)
class Section:
    """`parts` are tables and charts in reading order; `anchor` is unique on the page."""

    title: str
    anchor: str
    parts: Sequence[Table | Charts]
    headline: str = ""
    folded: bool = False


def slug(text: str) -> str:
    """A name for anchors and files: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def slugs(texts: Iterable[str]) -> list[str]:
    """Slugs of all titles; repeated ones get a number."""
    names: list[str] = []
    for text in map(slug, texts):
        number, name = 2, text
        while name in names:
            number, name = number + 1, f"{text}-{number}"
        names.append(name)
    return names

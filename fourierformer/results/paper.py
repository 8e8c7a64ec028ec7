"""The numbers the paper prints (results/paper.csv), and which of our rows each may be held against.

Every value has a status: `verified` (read in a source), `derived` (computed from verified or recalled values) or
`recalled` (from memory of the paper's tables, which no source at hand confirms). Lines of table `related` are other
people's runs of the same recipe: `make_tables.py --paper` shows them, no other table does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import read_csv
from fourierformer.provenance import SHARE
from fourierformer.results.comparison import Row, canonical
from fourierformer.tasks import Column

PAPER = SHARE / "results" / "paper.csv"
TABLES = ("1", "2", "3")
STATUSES = ("verified", "derived", "recalled")
# Samples (tokens, images) of the whole training may be off by this share: an epoch's last slice of text is shorter than
# the batch, which for WikiText-103 makes 0.1 %.
TOLERANCE = 0.01
BOTH_WEIGHTS = ("last", "best")  # Table 2 does not say which of the two it shows
BOTH_SPLITS = ("train", "test")  # the same of Table 3


@dataclass(frozen=True)
class PaperValue:
    """One number. An empty split or protocol is one that the paper does not state; `value` None was not recalled."""

    table: str
    experiment: str
    model: str
    data: str
    samples: int
    attention: str
    settings: str  # knobs of the attention that a run must share, as `power=4 radius=paper|2.0`
    split: str
    protocol: str
    metric: str
    value: float | None
    status: str
    source: str

    @property
    def columns(self) -> list[Column]:
        """The evaluations of ours that it may stand beside."""
        splits = [self.split] if self.split else BOTH_SPLITS
        protocols = [self.protocol] if self.protocol else BOTH_WEIGHTS
        return [(split, protocol) for split in splits for protocol in protocols]


COLUMNS = tuple(field.name for field in fields(PaperValue))


@cache
def read_paper(path: Path = PAPER) -> tuple[PaperValue, ...]:
    table = read_csv(path)
    if tuple(table.columns) != COLUMNS:
        raise SetupError(f"{path}: its columns must be {','.join(COLUMNS)}")
    return tuple(_value(line, path, number) for number, line in enumerate(table.rows, 2))


def paper_value(row: Row, column: Column, key: str) -> PaperValue | None:
    """What the paper prints for this cell; None unless names, data, length of training and knobs are the paper's."""
    for value in read_paper():
        if value.table in TABLES and value.metric == key and column in value.columns and is_the_papers(row, value):
            return value
    return None


def is_the_papers(row: Row, value: PaperValue) -> bool:
    names = (row.experiment, row.model, row.attention) == (value.experiment, value.model, value.attention)
    return names and at_paper_scale(row, value) and _same_settings(row, value)


def at_paper_scale(row: Row, value: PaperValue) -> bool:
    """A shortened run keeps the name of its experiment, so data and samples decide."""
    samples = row.quantity(row.task.unit)
    return (
        row.data == value.data
        and samples is not None
        and all(abs(count / value.samples - 1) <= TOLERANCE for count in samples.values.values())
    )


def scale_lines(rows: Iterable[Row]) -> list[str]:
    """One line per model: on what and how long it was trained, and whether that is the paper's scale."""
    lines = []
    for row in rows:
        steps, samples = row.quantity("steps"), row.quantity(row.task.unit)
        if steps is None or samples is None:
            continue
        trained = f"scale: {row.model} on {row.data}, {steps.mean:,.0f} steps, "
        trained += f"{samples.mean:,.0f} {row.task.unit}"
        lines.append(f"{trained}; {_against_paper(row)}")
    return list(dict.fromkeys(lines))


def _against_paper(row: Row) -> str:
    values = [v for v in read_paper() if (v.experiment, v.model) == (row.experiment, row.model) and v.table in TABLES]
    if not values:
        return "the paper has no number at this scale"
    if any(at_paper_scale(row, value) for value in values):
        return "the paper's scale"
    wanted = f"{values[0].samples:,} {row.task.unit} of {values[0].data}"
    return f"not the paper's, which is {wanted}: not comparable with its numbers"


def _same_settings(row: Row, value: PaperValue) -> bool:
    """Knobs that a run did not record are taken to be the defaults, which are the authors'."""
    wanted = dict(pair.split("=", 1) for pair in value.settings.split())
    known = {key: texts.split("|") for key, texts in wanted.items() if key in row.settings}
    return all(canonical(row.settings[key]) in map(_canonical_text, texts) for key, texts in known.items())


def _canonical_text(text: str) -> str:
    try:
        return canonical(float(text))
    except ValueError:
        return text


def _value(line: dict, path: Path, number: int) -> PaperValue:
    try:
        if line["status"] not in STATUSES:
            raise ValueError(f"status {line['status']!r} is none of {', '.join(STATUSES)}")
        numbers = {"samples": int(line["samples"]), "value": float(line["value"]) if line["value"] else None}
        return PaperValue(**(line | numbers))
    except (TypeError, ValueError) as error:
        raise SetupError(f"{path}, line {number}: {error}") from None

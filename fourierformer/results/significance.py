"""Sentences about differences: each configuration against softmax of the same model, one line per pair."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from fourierformer.results.comparison import Row, row_label
from fourierformer.results.metrics import metric, metric_text
from fourierformer.results.statistics import LEVEL, NO_CLAIM, Comparison, compare, holm
from fourierformer.tasks import Column

BASELINE = "softmax"


@dataclass(frozen=True)
class Pair:
    """One configuration against the baseline in one evaluation."""

    row: Row
    column: Column
    found: Comparison


def pairs(rows: list[Row], columns: Iterable[Column]) -> list[Pair]:
    """Every comparison that the rows allow: same model, scored in the same way, and one softmax row, not several."""
    columns, found = list(columns), []
    for row in rows:
        baselines = [other for other in rows if (other.model, other.attention) == (row.model, BASELINE)]
        if row.attention == BASELINE or len(baselines) != 1:
            continue
        for column in columns:
            ours, theirs = row.cell(column), baselines[0].cell(column)
            scored = row.protocols(column) | baselines[0].protocols(column)
            if ours and theirs and len(scored) == 1:
                found.append(Pair(row, column, compare(ours.values, theirs.values)))
    return found


def corrected_pairs(rows: list[Row], columns: Iterable[Column]) -> list[tuple[Pair, float | None]]:
    """Every pair with its p, corrected over all of them; None where nothing could be tested."""
    found = pairs(rows, columns)
    tested = {id(pair): pair.found.p for pair in found if pair.found.p is not None}
    corrected = dict(zip(tested, holm(tested.values()), strict=True))
    return [(pair, corrected.get(id(pair))) for pair in found]


def significance_lines(rows: list[Row], columns: Iterable[Column]) -> list[str]:
    """Empty where every comparison rests on one seed: the table says that once for all of them."""
    found = corrected_pairs(rows, columns)
    if all(pair.found.reason == NO_CLAIM for pair, _ in found):
        return []
    lines = []
    for _, of_row in groupby(found, key=lambda item: id(item[0].row)):
        own = list(of_row)
        texts = (_text(pair, p) for pair, p in own)
        lines.append(f"{who(own[0][0].row, rows)} - {BASELINE}: {'; '.join(texts)}")
    tested = sum(p is not None for _, p in found)
    how = "differences: mean ± 95 % t-interval; p is Holm-corrected over the comparisons of this table, here "
    return [*lines, f"{how}{tested}; better or worse where it is below 0.05"] if tested else lines


def p_text(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def signed(value: float, key: str) -> str:
    return ("+" if value > 0 else "") + metric_text(value, key)


def who(row: Row, rows: list[Row]) -> str:
    several = len({other.model for other in rows}) > 1
    return f"{row.model} {row_label(row, rows)}" if several else row_label(row, rows)


def _text(pair: Pair, corrected: float | None) -> str:
    split, protocol = pair.column
    where, found, key = f"{split} {protocol.replace('_', ' ')}", pair.found, pair.row.primary
    if corrected is None:
        shown = "" if found.difference is None else f" {signed(found.difference, key)}"
        return f"{where}{shown} ({found.reason})"
    assert found.difference is not None  # what has a p has a difference
    assert found.half_width is not None  # and its interval
    difference = f"{signed(found.difference, key)} ± {metric_text(found.half_width, key)}"
    verdict = _verdict(found.difference, key, corrected)
    return f"{where} {difference} ({found.test}, {p_text(corrected)}: {verdict})"


def _verdict(difference: float, key: str, corrected: float) -> str:
    if corrected >= 1 - LEVEL:
        return "no significant difference"
    return "better" if (difference > 0) == metric(key).higher_is_better else "worse"

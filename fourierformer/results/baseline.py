"""Each row of a table against softmax: at the same settings, or each attention at its own best settings."""

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from fourierformer.config import ADDED_LATER
from fourierformer.results.comparison import BASELINE, Cell, Row, canonical, of_attention
from fourierformer.results.labels import (
    differing_values,
    full_label,
    full_labels,
    same_setting,
    setting_of,
    value_text,
)
from fourierformer.results.metrics import column_text, metric
from fourierformer.results.statistics import (
    MARGIN,
    NO_CLAIM,
    POWER,
    Difference,
    Equivalence,
    compare,
    corrected,
    difference_text,
    equivalence,
    holm,
    not_finite,
    p_text,
    verdict,
)
from fourierformer.tasks import Column


@dataclass(frozen=True)
class Pair:
    """One configuration against the baseline in one evaluation."""

    row: Row
    column: Column
    difference: Difference
    p: float | None  # corrected over all pairs of the table; None where nothing could be tested
    equivalence: Equivalence  # its p likewise


def pairs(rows: list[Row], columns: Iterable[Column], *, across_settings: bool = False) -> list[Pair]:
    """Every row against softmax at the same settings, where there is exactly one such row that was scored in the same
    way. across_settings: against the one softmax row of the model, whatever its settings (see best_settings)."""
    columns, compared = list(columns), []
    for row in rows:
        baselines = baselines_of(row, rows, across_settings=across_settings)
        if row.is_baseline or len(baselines) != 1:
            continue
        for column in columns:
            ours, theirs = row.cell(column), baselines[0].cell(column)
            scored = row.protocols(column) | baselines[0].protocols(column)
            if ours and theirs and len(scored) == 1:
                compared.append((row, column, compare(ours, theirs), equivalence(ours, theirs, row.primary)))
    p_values = corrected(difference for _, _, difference, _ in compared)
    equivalences = iter(holm(same.p for *_, same in compared if same.p is not None))
    return [
        Pair(row, column, difference, p, same if same.p is None else Equivalence(next(equivalences), same.detectable))
        for (row, column, difference, same), p in zip(compared, p_values, strict=True)
    ]


def baselines_of(row: Row, rows: Iterable[Row], *, across_settings: bool = False) -> list[Row]:
    softmax = [other for other in rows if other.model == row.model and other.is_baseline]
    return [other for other in softmax if across_settings or same_setting(row, other)]


def significance_lines(rows: list[Row], columns: Iterable[Column], *, across_settings: bool = False) -> list[str]:
    """A sentence per configuration on how it differs from softmax. Empty where every comparison rests on one seed: the
    table has one note for all of them."""
    compared = pairs(rows, columns, across_settings=across_settings)
    if all(pair.difference.reason == NO_CLAIM for pair in compared):
        return []
    lines = []
    labels = dict(zip(map(id, rows), full_labels(rows), strict=True))
    for _, group in groupby(compared, key=lambda pair: id(pair.row)):
        of_row = list(group)
        row = of_row[0].row
        (softmax,) = baselines_of(row, rows, across_settings=across_settings)
        survivors = " (of the seeds that have not diverged)" if row.diverged or softmax.diverged else ""
        lines.append(f"{labels[id(row)]} - {labels[id(softmax)]}{survivors}: {'; '.join(map(_pair_text, of_row))}")
    tested = sum(pair.p is not None for pair in compared)
    unit = "points" if metric(rows[0].primary).unit == "%" else "%"
    how = (
        "differences: mean ± 95 % t-interval; p is Holm-corrected over the comparisons of this table, here "
        f"{tested}; better or worse: p < 0.05; equivalent: two one-sided tests (Holm-corrected) place the difference "
        f"within {100 * MARGIN:g} {unit}; undecided: with the smallest difference that a single test, before the "
        f"correction, finds with a power of {100 * POWER:g} %"
    )
    return [*lines, how] if tested else lines


def without_baseline(rows: list[Row]) -> list[str]:
    """One line on the rows that no softmax row may be compared with, though the model has some at other settings."""
    lonely = [
        row
        for row in rows
        if not row.is_baseline and not baselines_of(row, rows) and baselines_of(row, rows, across_settings=True)
    ]
    if not lonely:
        return []
    first = lonely[0]
    nearest = min(
        baselines_of(first, rows, across_settings=True),
        key=lambda row: len(differing_values([setting_of(first), setting_of(row)])[0]),
    )
    theirs = setting_of(nearest)
    # a key at the value that it had before it was added is in no row
    ours = {key: ADDED_LATER[key] for key in theirs if key in ADDED_LATER} | setting_of(first)
    others = {key: value for key, value in ours.items() if canonical(value) != canonical(theirs.get(key))}
    differing = [f"{key}={value_text(value)}" for key, value in others.items()]
    wanted = shlex.join([f"attention={BASELINE}", *differing])
    names = ", ".join(full_label(row, rows) for row in lonely)
    return [
        f"not compared with {BASELINE}, which was not trained at the same settings: {names}. Train it there "
        f"({wanted}), or compare each attention at its own best settings (--best-by valid)"
    ]


@dataclass(frozen=True)
class Choice:
    """Each attention at the settings where its validation is best."""

    rows: list[Row]
    lines: list[str]  # what was chosen, of how many


def best_settings(rows: list[Row], column: Column) -> Choice:
    """For each attention (with its knobs) that was tried at several settings, the row whose mean in `column`, of
    validation, is best."""
    measured = [row for row in rows if row.cell(column)]
    usual = {row.model: _usual_protocols(row.model, measured, column) for row in measured}
    alike = [row for row in measured if row.protocols(column) == usual[row.model]]
    by_attention: dict[str, list[Row]] = {}
    for row in alike:
        knobs = {key: canonical(value) for key, value in row.config.items() if of_attention(key)}
        by_attention.setdefault(f"{row.model} {row.attention} {sorted(knobs.items())}", []).append(row)
    chosen, lines, diverged = [], [], []
    single = [tried[0] for tried in by_attention.values() if len(tried) == 1]
    for tried in (tried for tried in by_attention.values() if len(tried) > 1):
        finite = [row for row in tried if not not_finite(_cell_of(row, column))]
        whole = [row for row in finite if not row.diverged] or finite or tried
        diverged += [row for row in tried if row.diverged and row not in whole]
        sign = -1 if metric(tried[0].primary).higher_is_better else 1
        best = min(whole, key=lambda row: sign * _cell_of(row, column).mean)
        chosen.append(best)
        lines.append(f"{full_label(best, rows)} of {len(tried)}")
    measure = f"{column_text(column)} {metric(rows[0].primary).name}"
    used = f"each attention at its own best settings, chosen by mean {measure}: {', '.join(lines)} tried"
    same_seeds = "the seeds that chose are those that are compared: trust numbers of test, not of valid"
    otherwise = [row for row in measured if row not in alike]
    reasons = {
        f"tried at one setting only{', of those scored alike' if otherwise else ''}": single,
        "some of its seeds diverged": diverged,
        "scored differently": otherwise,
        f"without {measure}": [row for row in rows if row not in measured],
    }
    left_out = [
        f"left out, since {reason}: {', '.join(full_label(row, rows) for row in found)}"
        for reason, found in reasons.items()
        if found
    ]
    return Choice(chosen, [used, *left_out, same_seeds])


def _usual_protocols(model: str, rows: list[Row], column: Column) -> set[tuple]:
    """How most rows of a model were scored."""
    counts = Counter(frozenset(row.protocols(column)) for row in rows if row.model == model)
    return set(counts.most_common(1)[0][0])


def _cell_of(row: Row, column: Column) -> Cell:
    cell = row.cell(column)
    assert cell is not None  # best_settings keeps only rows that have one
    return cell


def _pair_text(pair: Pair) -> str:
    key, difference = pair.row.primary, pair.difference
    shown = " ".join(filter(None, [column_text(pair.column), difference_text(difference, key)]))
    if pair.p is None:
        return f"{shown} ({difference.reason})"
    return f"{shown} ({difference.test}, {p_text(pair.p)}: {verdict(difference, key, pair.p, pair.equivalence)})"

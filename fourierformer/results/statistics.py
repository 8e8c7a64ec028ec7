"""Statistics over seeds: t-intervals, t-tests, Holm's correction; then each configuration of a table against softmax.

A handful of seeds is a small sample of unknown variance, so everything rests on Student's t. What cannot be stated (one
seed, an infinite perplexity, values that do not vary) is a sentence in place of a number, never a warning or a NaN.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from fourierformer.results.comparison import Cell, Row, column_text, full_label, metric, metric_text
from fourierformer.tasks import Column

NO_CLAIM = "n = 1: no claim"
LEVEL = 0.95
SIGNIFICANT = 0.05  # below it, not at it; 1 - 0.95 is a little more
BASELINE = "softmax"


@dataclass(frozen=True)
class Difference:
    """The mean difference of two sets of runs. `reason` says why a part of it is missing."""

    mean: float | None = None
    half_width: float | None = None  # of its 95 % t-interval
    p: float | None = None
    test: str = ""  # how p was computed
    reason: str = ""


def half_width(cell: Cell) -> float | None:
    """The interval is mean +- t sd / sqrt(n), t the (1 + LEVEL) / 2 quantile of Student's t with n - 1 degrees of
    freedom: for five seeds t = 2.776. None where there is no standard deviation."""
    from scipy.stats import t as student

    if cell.sd is None:
        return None
    return float(student.ppf((1 + LEVEL) / 2, cell.n - 1)) * cell.sd / math.sqrt(cell.n)


def compare(cell: Cell, baseline: Cell) -> Difference:
    """`cell` minus `baseline`.

    With the same seeds on both sides the differences are tested seed by seed (paired: what a seed does to both
    cancels), with other seeds by Welch's test, which does not assume equal variances. Seeds are never dropped to make
    pairs.
    """
    of_baseline = not_finite(baseline)
    infinite = ", ".join(filter(None, [not_finite(cell), of_baseline and f"baseline {of_baseline}"]))
    if infinite:
        return Difference(reason=f"{infinite}: no claim")
    if cell.n < 2 or baseline.n < 2:
        return Difference(cell.mean - baseline.mean, reason=NO_CLAIM)
    same_seeds = cell.values.keys() == baseline.values.keys()
    return _paired(cell, baseline) if same_seeds else _welch(cell, baseline)


def holm(p_values: Iterable[float]) -> list[float]:
    """Holm's (1979) step-down correction: the i-th smallest of m becomes max over j <= i of (m - j + 1) p_j, at most 1.

    Rejecting what stays below 0.05 keeps the chance of any false claim among the m below 5 %, however they depend on
    each other.
    """
    p_values = list(p_values)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def corrected(differences: Iterable[Difference]) -> list[float | None]:
    """The p of each, corrected over all of them; None where nothing could be tested."""
    p_values = [difference.p for difference in differences]
    adjusted = iter(holm(p for p in p_values if p is not None))
    return [None if p is None else next(adjusted) for p in p_values]


def not_finite(cell: Cell) -> str:
    """'infinite with seed 3', 'NaN with seed 1'; '' where every value is a number."""
    wrong = {seed: value for seed, value in cell.values.items() if not math.isfinite(value)}
    return ", ".join(f"{'NaN' if math.isnan(value) else 'infinite'} with seed {seed}" for seed, value in wrong.items())


def _paired(cell: Cell, baseline: Cell) -> Difference:
    from scipy.stats import ttest_1samp

    differences = Cell({seed: cell.values[seed] - baseline.values[seed] for seed in cell.values})
    if _constant(differences):
        return Difference(differences.mean, reason="the same difference with every seed: no test")
    test = ttest_1samp(list(differences.values.values()), 0)  # what ttest_rel is
    return Difference(differences.mean, half_width(differences), float(test.pvalue), "paired t-test")


def _welch(cell: Cell, baseline: Cell) -> Difference:
    from scipy.stats import ttest_ind

    mean = cell.mean - baseline.mean
    if _constant(cell) and _constant(baseline):
        return Difference(mean, reason="values do not vary: no test")
    test = ttest_ind(list(cell.values.values()), list(baseline.values.values()), equal_var=False)
    low, high = test.confidence_interval(LEVEL)
    return Difference(mean, float(high - low) / 2, float(test.pvalue), "Welch's t-test")


def _constant(cell: Cell) -> bool:
    """Up to rounding: 61.2 - 60.1 and 62.2 - 61.1 differ in their last bits, which no test may take for noise."""
    values = cell.values.values()
    return max(values) - min(values) <= 1e-9 * max(1.0, *map(abs, values))


@dataclass(frozen=True)
class Pair:
    """One configuration against the baseline in one evaluation."""

    row: Row
    column: Column
    difference: Difference
    p: float | None  # corrected over all pairs of the table; None where nothing could be tested


def pairs(rows: list[Row], columns: Iterable[Column]) -> list[Pair]:
    """Every comparison that the rows allow: same model, scored in the same way, and one softmax row, not several."""
    columns, compared = list(columns), []
    for row in rows:
        baselines = [other for other in rows if (other.model, other.attention) == (row.model, BASELINE)]
        if row.attention == BASELINE or len(baselines) != 1:
            continue
        for column in columns:
            ours, theirs = row.cell(column), baselines[0].cell(column)
            scored = row.protocols(column) | baselines[0].protocols(column)
            if ours and theirs and len(scored) == 1:
                compared.append((row, column, compare(ours, theirs)))
    p_values = corrected(difference for *_, difference in compared)
    return [Pair(*pair, p) for pair, p in zip(compared, p_values, strict=True)]


def significance_lines(rows: list[Row], columns: Iterable[Column]) -> list[str]:
    """A sentence per configuration on how it differs from softmax. Empty where every comparison rests on one seed: the
    table says that once for all of them."""
    compared = pairs(rows, columns)
    if all(pair.difference.reason == NO_CLAIM for pair in compared):
        return []
    lines = []
    for _, group in groupby(compared, key=lambda pair: id(pair.row)):
        of_row = list(group)
        lines.append(f"{full_label(of_row[0].row, rows)} - {BASELINE}: {'; '.join(map(_pair_text, of_row))}")
    tested = sum(pair.p is not None for pair in compared)
    how = "differences: mean ± 95 % t-interval; p is Holm-corrected over the comparisons of this table, here "
    return [*lines, f"{how}{tested}; better or worse where it is below 0.05"] if tested else lines


def p_text(p: float) -> str:
    if p < 1e-4:
        return "p < 0.0001"
    digits = 2 if p >= SIGNIFICANT or float(f"{p:.2g}") < SIGNIFICANT else 4  # 0.0499 must not read as 0.05
    return f"p = {p:.{digits}g}"


def signed(value: float, key: str) -> str:
    return ("+" if value > 0 else "") + metric_text(value, key)


def difference_text(difference: Difference, key: str) -> str:
    """'-1.25 ± 0.40', without the interval where there is none; empty for no difference."""
    if difference.mean is None:
        return ""
    interval = "" if difference.half_width is None else f" ± {metric_text(difference.half_width, key)}"
    return signed(difference.mean, key) + interval


def change_text(value: float, baseline: float, key: str) -> str:
    """How far a value is from its baseline: in points where both are per cent, else in per cent of the baseline."""
    if metric(key).unit == "%":
        return f"{value - baseline:+.{metric(key).decimals}f} points"
    return f"{100 * (value / baseline - 1):+.1f}%"


def _pair_text(pair: Pair) -> str:
    key, difference = pair.row.primary, pair.difference
    shown = " ".join(filter(None, [column_text(pair.column), difference_text(difference, key)]))
    if pair.p is None:
        return f"{shown} ({difference.reason})"
    return f"{shown} ({difference.test}, {p_text(pair.p)}: {verdict(difference, key, pair.p)})"


def verdict(difference: Difference, key: str, p: float) -> str:
    """'better', 'worse' or 'no significant difference' than the baseline, at a corrected p."""
    if p >= SIGNIFICANT or difference.mean is None:
        return "no significant difference"
    return "better" if (difference.mean > 0) == metric(key).higher_is_better else "worse"

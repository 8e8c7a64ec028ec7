"""Statistics over seeds: mean, sample standard deviation, t-interval, t-tests, Holm's correction.

A handful of seeds is a small sample of unknown variance, so everything rests on Student's t. What cannot be said (one
seed, an infinite perplexity, values that do not vary) is a sentence in place of a number, never a warning or a NaN.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NO_CLAIM = "n = 1: no claim"
LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """The mean difference of two sets of runs. `reason` says why a part of it is missing."""

    difference: float | None = None
    half_width: float | None = None  # of its 95 % t-interval
    p: float | None = None
    test: str = ""  # how p was computed
    reason: str = ""


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)  # not statistics.mean: an infinite perplexity must stay infinite


def sd(values: Iterable[float]) -> float | None:
    """Sample standard deviation, n - 1 in the denominator; None for a single value, which has none, and where a value
    is not finite."""
    values = list(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def half_width(values: Iterable[float], level: float = LEVEL) -> float | None:
    """The interval is mean +- t sd / sqrt(n), t the (1 + level) / 2 quantile of Student's t with n - 1 degrees of
    freedom: for five seeds at 95 % t = 2.776. None where there is no standard deviation."""
    from scipy.stats import t as student

    values = list(values)
    spread = sd(values)
    if spread is None:
        return None
    return float(student.ppf((1 + level) / 2, len(values) - 1)) * spread / math.sqrt(len(values))


def compare(values: Mapping, baseline: Mapping) -> Comparison:
    """`values` minus `baseline`, both by seed.

    With the same seeds on both sides the differences are tested seed by seed (paired: what a seed does to both
    cancels), with other seeds by Welch's test, which does not assume equal variances. Seeds are never dropped to make
    pairs.
    """
    infinite = _not_finite(values, baseline)
    if infinite:
        return Comparison(reason=f"{infinite}: no claim")
    difference = mean(values.values()) - mean(baseline.values())
    if len(values) < 2 or len(baseline) < 2:
        return Comparison(difference, reason=NO_CLAIM)
    return _paired(values, baseline) if values.keys() == baseline.keys() else _welch(values, baseline)


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


def not_finite(values: Mapping) -> str:
    """'infinite with seed 3', 'NaN with seed 1'; '' where every value is a number."""
    wrong = {seed: value for seed, value in values.items() if not math.isfinite(value)}
    return ", ".join(f"{'NaN' if math.isnan(value) else 'infinite'} with seed {seed}" for seed, value in wrong.items())


def _not_finite(values: Mapping, baseline: Mapping) -> str:
    found = not_finite(baseline)
    return ", ".join(filter(None, [not_finite(values), found and f"baseline {found}"]))


def _paired(values: Mapping, baseline: Mapping) -> Comparison:
    from scipy.stats import ttest_1samp

    differences = [values[seed] - baseline[seed] for seed in values]
    if _constant(differences):
        return Comparison(mean(differences), reason="the same difference with every seed: no test")
    found = ttest_1samp(differences, 0)  # what ttest_rel is
    return Comparison(mean(differences), half_width(differences), float(found.pvalue), "paired t-test")


def _welch(values: Mapping, baseline: Mapping) -> Comparison:
    from scipy.stats import ttest_ind

    left, right = list(values.values()), list(baseline.values())
    difference = mean(left) - mean(right)
    if _constant(left) and _constant(right):
        return Comparison(difference, reason="values do not vary: no test")
    found = ttest_ind(left, right, equal_var=False)
    low, high = found.confidence_interval(LEVEL)
    return Comparison(difference, float(high - low) / 2, float(found.pvalue), "Welch's t-test")


def _constant(values: list[float]) -> bool:
    """Up to rounding: 61.2 - 60.1 and 62.2 - 61.1 differ in their last bits, which no test may take for noise."""
    return max(values) - min(values) <= 1e-9 * max(1.0, *map(abs, values))

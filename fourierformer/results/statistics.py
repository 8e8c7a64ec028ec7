"""Statistics over seeds: t-intervals, t-tests, equivalence tests, Holm's correction, Dunnett's test.

A handful of seeds is a small sample of unknown variance, so everything rests on Student's t. What cannot be stated (one
seed, an infinite perplexity, values that do not vary) is a sentence in place of a number, never a warning or a NaN.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fourierformer.results.comparison import Cell
from fourierformer.results.metrics import metric, metric_text

NO_CLAIM = "n = 1: no claim"
LEVEL = 0.95
SIGNIFICANT = 0.05  # below it, not at it; 1 - 0.95 is a little more
MARGIN = 0.01  # equivalent: within 1 % of the baseline, or within one point of a percentage
POWER = 0.8  # of the smallest difference that a test is said to find


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


@dataclass(frozen=True)
class Equivalence:
    """Whether two sets of runs differ by less than a margin, and how large a difference has to be to be found."""

    p: float | None = None  # of two one-sided t-tests; None where there are too few seeds
    detectable: float | None = None  # the smallest that one test finds with a power of 80 %: relative, or in points


def equivalence(cell: Cell, baseline: Cell, key: str, margin: float = MARGIN) -> Equivalence:
    """Two one-sided t-tests (Schuirmann 1987): p is the larger of the two, small where |difference| < margin.

    Metrics of positive size are compared by their logarithms, so that the margin is relative; percentages as they are,
    with the margin in points. Paired where the seeds are the same, else Welch's. The smallest detectable difference is
    (t(0.975) + t(0.8)) standard errors, which approximates the noncentral t distribution, of a single test: a
    correction for several raises it.
    """
    from scipy.stats import t as student

    if cell.n < 2 or baseline.n < 2 or not_finite(cell) or not_finite(baseline):
        return Equivalence()
    is_relative = metric(key).unit != "%"
    if is_relative and min(*cell.values.values(), *baseline.values.values()) <= 0:
        return Equivalence()
    bound = math.log1p(margin) if is_relative else 100 * margin
    first, second = (_scaled(each, math.log) if is_relative else each for each in (cell, baseline))
    mean, error, freedom = _standard_error(first, second)
    if error <= 1e-12:
        return Equivalence()
    p = max(student.sf((bound - mean) / error, freedom), student.sf((bound + mean) / error, freedom))
    smallest = float(student.ppf((1 + LEVEL) / 2, freedom) + student.ppf(POWER, freedom)) * error
    return Equivalence(float(p), math.expm1(smallest) if is_relative else smallest)


def _standard_error(first: Cell, second: Cell) -> tuple[float, float, float]:
    """Mean difference, its standard error, and the degrees of freedom: paired, or Welch's."""
    if first.values.keys() == second.values.keys():
        differences = Cell({seed: first.values[seed] - second.values[seed] for seed in first.values})
        return differences.mean, (differences.sd or 0.0) / math.sqrt(differences.n), differences.n - 1
    one, two = ((cell.sd or 0.0) ** 2 / cell.n for cell in (first, second))
    spread = one**2 / (first.n - 1) + two**2 / (second.n - 1)
    return first.mean - second.mean, math.sqrt(one + two), (one + two) ** 2 / spread if spread else 1.0


def _scaled(cell: Cell, function) -> Cell:
    return Cell({seed: function(value) for seed, value in cell.values.items()})


@dataclass(frozen=True)
class Dunnett:
    """Many configurations against one control."""

    p: dict[str, float]  # corrected for all comparisons together
    intervals: dict[str, tuple[float, float]]  # simultaneous, of the difference: relative, or in points
    spread: float  # largest / smallest standard deviation of the groups: the test assumes that they are equal
    p_spread: float  # Brown and Forsythe's test of that assumption; NaN where no group has three seeds


def dunnett(cells: Mapping[str, Cell], control: Cell, key: str) -> Dunnett | None:
    """Dunnett's test (1955) of every cell against the control, on logarithms where the metric is not a percentage.

    All groups share one estimate of the variance, so that three seeds each are enough where there are many groups; in
    return it assumes normal errors of equal variance. Cells with one seed, an infinite value or one without a logarithm
    are left out; None where nothing is left, and where no group varies.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import levene

    is_relative = metric(key).unit != "%"

    def is_usable(cell: Cell) -> bool:
        return cell.n > 1 and not not_finite(cell) and not (is_relative and min(cell.values.values()) <= 0)

    usable = {name: cell for name, cell in cells.items() if is_usable(cell)}
    if not usable or not is_usable(control):
        return None
    groups = [np.array(list(cell.values.values())) for cell in (control, *usable.values())]
    if is_relative:
        groups = [np.log(group) for group in groups]
    sizes, means = np.array([group.size for group in groups]), np.array([group.mean() for group in groups])
    freedom = int(sizes.sum()) - len(groups)
    pooled = math.sqrt(sum(((group - group.mean()) ** 2).sum() for group in groups) / freedom)
    if pooled <= 1e-12:
        return None
    errors = pooled * np.sqrt(1 / sizes[1:] + 1 / sizes[0])
    differences = means[1:] - means[0]

    def exceeded(bound: float) -> float:
        return _exceeded(bound, sizes, freedom)

    p = [exceeded(abs(difference) / error) for difference, error in zip(differences, errors, strict=True)]
    half = brentq(lambda bound: exceeded(bound) - (1 - LEVEL), 0.1, 100.0, xtol=1e-6) * errors
    limits = np.stack([differences - half, differences + half], axis=1)
    if is_relative:
        limits = np.expm1(limits)
    deviations = [group.std(ddof=1) for group in groups]
    # two values are equally far from their median: without a third, groups never vary in that distance
    p_spread = float(levene(*groups, center="median").pvalue) if sizes.max() > 2 else math.nan
    return Dunnett(
        dict(zip(usable, p, strict=True)),
        {name: (float(low), float(high)) for name, (low, high) in zip(usable, limits, strict=True)},
        float(max(deviations) / min(deviations)) if min(deviations) else math.inf,
        p_spread,
    )


def _exceeded(bound: float, sizes, freedom: int) -> float:
    """P(max_i |T_i| > bound) of Dunnett's statistics T_i, exactly, by quadrature: they are independent given the
    control's mean z and the pooled standard deviation s, with correlations l_i l_j, l_i^2 = n_i / (n_i + n_0).

    scipy.stats.dunnett integrates the same by random points, which takes half a minute for 50 groups.
    """
    import numpy as np
    from scipy.stats import chi, norm

    # sums over equal steps: errors vanish exponentially for densities that fall off so fast on both sides, as that of
    # log s does; with few degrees of freedom that of s does not at 0
    z = np.linspace(-8, 8, 81)
    low, high = chi.ppf([1e-12, 1 - 1e-12], freedom) / math.sqrt(freedom)
    s = np.geomspace(low, high, 201)
    density = norm.pdf(z)[:, None] * chi.pdf(s, freedom, scale=1 / math.sqrt(freedom)) * s
    weights = density * (z[1] - z[0]) * math.log(s[1] / s[0])
    within = np.ones_like(weights)
    for loading, count in zip(*np.unique(np.sqrt(sizes[1:] / (sizes[1:] + sizes[0])), return_counts=True), strict=True):
        middle, rest = loading * z[:, None], math.sqrt(1 - loading**2)
        within *= (norm.cdf((bound * s - middle) / rest) - norm.cdf((-bound * s - middle) / rest)) ** count
    return max(0.0, float((weights * (1 - within)).sum()))


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
    from scipy.stats import t as student

    mean, error, freedom = _standard_error(cell, baseline)
    if _constant(cell) and _constant(baseline):
        return Difference(mean, reason="values do not vary: no test")
    # scipy's ttest_ind computes the same, but warns where one side does not vary
    half, p = student.ppf((1 + LEVEL) / 2, freedom) * error, 2 * student.sf(abs(mean) / error, freedom)
    return Difference(mean, float(half), float(p), "Welch's t-test")


def _constant(cell: Cell) -> bool:
    """Up to rounding: 61.2 - 60.1 and 62.2 - 61.1 differ in their last bits, which no test may take for noise."""
    values = cell.values.values()
    return max(values) - min(values) <= 1e-9 * max(1.0, *map(abs, values))


def p_text(p: float) -> str:
    if p < 1e-4:
        return "p < 0.0001"
    # 0.0499 must not read as 0.05, nor 0.049996
    digits = 2 if p >= SIGNIFICANT else next(n for n in (2, *range(4, 18)) if float(f"{p:.{n}g}") < SIGNIFICANT)
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
    """How far a value is from its baseline: in points where both are per cent, else in per cent of the baseline, of
    which only positive numbers have any."""
    if metric(key).unit == "%":
        return f"{_with_sign(value - baseline, metric(key).decimals)} points"
    return f"{_with_sign(100 * (value / baseline - 1), 1)}%" if baseline > 0 else signed(value - baseline, key)


def _with_sign(value: float, decimals: int) -> str:
    """'+1.2', '-1.2', and '0.0' for what rounds to 0."""
    text = f"{value:+z.{decimals}f}"
    return text if float(text) else text[1:]


def verdict(difference: Difference, key: str, p: float, same: Equivalence | None = None) -> str:
    """'better', 'worse', 'equivalent within 1 %', or 'undecided' with the smallest difference that could be found, at
    corrected p."""
    words = []
    if p < SIGNIFICANT and difference.mean is not None:
        words.append("better" if (difference.mean > 0) == metric(key).higher_is_better else "worse")
    if same and same.p is not None and same.p < SIGNIFICANT:
        words.append(f"equivalent within {100 * MARGIN:g} {'points' if metric(key).unit == '%' else '%'}")
    if words:
        return ", but ".join(words)
    if same is None or same.detectable is None:
        return "undecided"
    if metric(key).unit == "%":
        return f"undecided: finds {same.detectable:.1f} points"
    return f"undecided: finds {100 * same.detectable:.1f} %"

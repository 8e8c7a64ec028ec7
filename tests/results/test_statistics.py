"""Statistics against scipy, textbook values and an example computed by hand."""

import math

import pytest
from scipy import stats

from fourierformer.results.comparison import Cell
from fourierformer.results.statistics import NO_CLAIM, Difference, compare, half_width, holm, p_text, verdict

# Student's sleep data (Biometrika 1908): hours gained by ten patients under two drugs; textbooks print paired
# t = -4.0621 with p = 0.002833, and Welch t = -1.8608 with p = 0.07939
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def by_seed(values, first: int = 1) -> Cell:
    return Cell(dict(enumerate(values, first)))


def test_mean_and_standard_deviation():
    assert by_seed(FIRST).mean == pytest.approx(0.75)
    assert by_seed(FIRST).sd == pytest.approx(1.789010, abs=1e-6)  # as printed with the data
    assert by_seed([2.0, 4.0]).sd == pytest.approx(math.sqrt(2))  # n - 1 below: sqrt((1 + 1) / 1)
    assert by_seed([1.0]).sd is None


def test_interval_has_the_quantile_of_the_t_table():
    # five values with sd = sqrt(2.5): t(0.975; 4) = 2.776
    assert half_width(by_seed([1, 2, 3, 4, 5])) == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=5e-4)
    # two values: t(0.975; 1) = 12.706
    assert half_width(by_seed([0.0, 1.0])) == pytest.approx(12.706 * math.sqrt(0.5 / 2), abs=5e-4)
    low, high = stats.t.interval(0.95, 9, loc=by_seed(SECOND).mean, scale=stats.sem(SECOND))
    assert half_width(by_seed(SECOND)) == pytest.approx((high - low) / 2)
    assert half_width(by_seed([3.0])) is None


def test_the_same_seeds_are_paired():
    found = compare(by_seed(FIRST), by_seed(SECOND))
    assert found.test == "paired t-test"
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    expected = stats.ttest_rel(FIRST, SECOND)
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean, found.half_width) == pytest.approx((-1.58, (high - low) / 2))
    assert (low, high) == pytest.approx((-2.4598858, -0.7001142))  # as printed


def test_pairs_are_found_by_seed_not_by_order():
    shuffled = Cell(dict(reversed(by_seed(SECOND).values.items())))
    assert compare(by_seed(FIRST), shuffled) == compare(by_seed(FIRST), by_seed(SECOND))


@pytest.mark.parametrize("first", [2, 101])
def test_other_seeds_are_compared_by_welch(first):
    found = compare(by_seed(FIRST), by_seed(SECOND, first))
    assert found.test == "Welch's t-test"
    assert found.p == pytest.approx(0.07939, abs=5e-6)
    expected = stats.ttest_ind(FIRST, SECOND, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert (found.p, found.half_width) == pytest.approx((expected.pvalue, (high - low) / 2))


def test_one_seed_makes_no_claim():
    for values, baseline in (([61.0], [60.0]), ([61.0], [60.0, 62.0]), ([61.0, 62.0], [60.0])):
        found = compare(by_seed(values), by_seed(baseline))
        assert (found.p, found.half_width, found.reason) == (None, None, NO_CLAIM)
        assert found.mean == pytest.approx(by_seed(values).mean - by_seed(baseline).mean)


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_said_in_words():
    found = compare(Cell({1: 60.0, 3: math.inf}), Cell({1: 61.0, 3: 62.0}))
    assert (found.mean, found.p, found.reason) == (None, None, "infinite with seed 3: no claim")
    assert compare(Cell({1: 60.0}), Cell({1: math.nan})).reason == "baseline NaN with seed 1: no claim"
    assert by_seed([1.0, math.inf]).mean == math.inf
    assert by_seed([1.0, math.inf]).sd is None
    assert half_width(by_seed([1.0, math.nan, 2.0])) is None


@pytest.mark.filterwarnings("error")
def test_values_without_variation_are_not_tested():
    found = compare(Cell({1: 61.2, 2: 62.2}), Cell({1: 60.1, 2: 61.1}))
    assert (found.p, found.mean) == (None, pytest.approx(1.1))
    assert "same difference" in found.reason
    assert "do not vary" in compare(Cell({1: 5.0, 2: 5.0}), Cell({3: 4.0, 4: 4.0})).reason


def test_holm_by_hand():
    # 4 tests. Sorted: 0.005 x 4 = 0.02, 0.01 x 3 = 0.03, 0.03 x 2 = 0.06, 0.04 x 1 = 0.04 -> raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_holm_lies_between_no_correction_and_bonferroni():
    p_values = [0.001, 0.2, 0.013, 0.04, 0.04, 0.8]
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        assert p <= adjusted <= min(1.0, len(p_values) * p)


@pytest.mark.parametrize(
    ("key", "mean", "said"),
    [("ppl", -1.0, "better"), ("ppl", 1.0, "worse"), ("top1", 1.0, "better"), ("top1", -1.0, "worse")],
)
@pytest.mark.parametrize(("p", "claims"), [(0.049, True), (0.05, False), (0.051, False), (0.3, False)])
def test_a_verdict_needs_p_below_005(key, mean, said, p, claims):
    """Perplexities are better when they are lower, accuracies when they are higher."""
    assert verdict(Difference(mean, p=p), key, p) == (said if claims else "no significant difference")


@pytest.mark.parametrize(
    ("p", "said"), [(0.00003, "p < 0.0001"), (0.0123, "p = 0.012"), (0.0499, "p = 0.0499"), (0.0504, "p = 0.05")]
)
def test_a_p_below_005_does_not_read_as_005(p, said):
    assert p_text(p) == said

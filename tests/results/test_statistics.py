"""Statistics against scipy, textbook values and an example computed by hand."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from fourierformer.results.comparison import Cell
from fourierformer.results.statistics import (
    NO_CLAIM,
    Difference,
    Equivalence,
    change_text,
    compare,
    corrected,
    dunnett,
    equivalence,
    half_width,
    holm,
    p_text,
    verdict,
)

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


def test_small_differences_are_tested_too():
    """Errors of a regression, which differ in their fourth decimal."""
    first, second = [0.0101, 0.0103, 0.0102], [0.0100, 0.0101, 0.0104]
    assert compare(by_seed(first), by_seed(second)).p == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_holm_by_hand():
    # 4 tests. Sorted: 0.005 x 4 = 0.02, 0.01 x 3 = 0.03, 0.03 x 2 = 0.06, 0.04 x 1 = 0.04 -> raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.7, 0.6]) == [1.0, 1.0]  # a probability: 0.6 x 2 is cut
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_a_p_of_0_was_tested_and_is_corrected():
    """Student's t of a difference a million times its error: the p underflows, and it still counts."""
    found = corrected([Difference(1.0, p=0.0), Difference(1.0, reason=NO_CLAIM), Difference(1.0, p=0.4)])
    assert found == [0.0, None, 0.4]


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
    assert verdict(Difference(mean, p=p), key, p) == (said if claims else "undecided")


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (0.00003, "p < 0.0001"),
        (0.0001, "p = 0.0001"),
        (0.0123, "p = 0.012"),
        (0.0499, "p = 0.0499"),
        (0.049996, "p = 0.049996"),
        (0.0504, "p = 0.05"),
    ],
)
def test_a_p_below_005_does_not_read_as_005(p, said):
    assert p_text(p) == said


# -- equivalence -------------------------------------------------------------------------------------------------------


def test_two_one_sided_tests_against_scipy():
    """The larger p of two one-sided paired t-tests against -log 1.01 and log 1.01, on logarithms."""
    first, second = [100.2, 101.1, 99.0, 100.4], [100.0, 101.3, 99.2, 100.1]
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    bound = math.log(1.01)
    expected = max(
        stats.ttest_1samp(logs, bound, alternative="less").pvalue,
        stats.ttest_1samp(logs, -bound, alternative="greater").pvalue,
    )
    assert equivalence(by_seed(first), by_seed(second), "ppl").p == pytest.approx(expected)
    assert expected < 0.05


def test_two_one_sided_tests_of_other_seeds_are_welchs():
    """Spreads and numbers of seeds differ, so that the degrees of freedom are not those of the pooled test."""
    first, second = [100.2, 101.1, 99.0, 100.4], [100.0, 100.1, 100.05]
    one, two, bound = np.log(first), np.log(second), math.log(1.01)
    expected = max(
        stats.ttest_ind(one - bound, two, equal_var=False, alternative="less").pvalue,
        stats.ttest_ind(one + bound, two, equal_var=False, alternative="greater").pvalue,
    )
    assert equivalence(by_seed(first), by_seed(second, first=11), "ppl").p == pytest.approx(expected)


def test_small_differences_have_two_one_sided_tests_too():
    """Perplexities that differ in their second decimal."""
    first, second = [100.00, 100.01, 100.02], [99.99, 100.01, 99.99]
    logs, bound = np.log(first) - np.log(second), math.log(1.01)
    expected = stats.ttest_1samp(logs, bound, alternative="less").pvalue
    assert equivalence(by_seed(first), by_seed(second), "ppl").p == pytest.approx(expected)


def test_equivalence_agrees_with_the_90_percent_interval():
    """TOST at level 5 % rejects exactly where the 90 % interval lies within the margin."""
    for shift in (0.0, 0.004, 0.006, 0.008, 0.02):
        logs = [shift + error for error in (0.003, -0.002, 0.001, -0.004, 0.002)]
        cells = by_seed([100 * math.exp(d) for d in logs]), by_seed([100.0] * 5)
        low, high = stats.t.interval(0.9, 4, loc=sum(logs) / 5, scale=stats.sem(logs))
        inside = -math.log(1.01) < low and high < math.log(1.01)
        assert (equivalence(*cells, "ppl").p < 0.05) == inside, shift


def test_a_percentage_has_its_margin_in_points():
    one, other = by_seed([61.0, 61.4, 60.8]), by_seed([61.1, 61.3, 60.9])
    assert equivalence(one, other, "top1").p == pytest.approx(
        max(
            stats.ttest_1samp([-0.1, 0.1, -0.1], 1, alternative="less").pvalue,
            stats.ttest_1samp([-0.1, 0.1, -0.1], -1, alternative="greater").pvalue,
        )
    )


def test_the_detectable_difference_is_found_with_four_fifths_of_the_power():
    """By the noncentral t distribution, which the stated formula approximates."""
    logs = [0.1, -0.2, 0.15, 0.0, -0.05, 0.12, -0.1, 0.04]  # so large that a log is not the relative difference
    found = equivalence(by_seed([math.exp(d) for d in logs]), by_seed([1.0] * 8), "ppl").detectable
    error, freedom = stats.sem(logs), 7
    critical = stats.t.ppf(0.975, freedom)
    power = stats.nct.sf(critical, freedom, math.log1p(found) / error)
    assert power == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("values", [[61.0], [61.0, math.inf]])
def test_too_few_seeds_are_never_equivalent(values):
    cell = by_seed(values)
    assert equivalence(cell, by_seed([61.0] * len(values)), "ppl").p is None


def test_the_verdict_tells_too_few_seeds_from_no_difference():
    few = equivalence(by_seed([60.0, 64.0]), by_seed([61.0, 60.0]), "ppl")
    assert re.fullmatch(r"undecided: finds [\d,.]+ %", verdict(Difference(1.0), "ppl", 0.5, few))
    same = Equivalence(0.01, 0.004)
    assert verdict(Difference(0.1), "ppl", 0.5, same) == "equivalent within 1 %"
    assert verdict(Difference(0.1), "ppl", 0.01, same) == "worse, but equivalent within 1 %"
    assert verdict(Difference(0.1), "top1", 0.5, same) == "equivalent within 1 points"


# -- many against one --------------------------------------------------------------------------------------------------


def test_dunnett_against_scipy_with_groups_of_unequal_size():
    draw = np.random.default_rng(1)
    groups = [draw.normal(mean, 1.0, size) for mean, size in ((50, 5), (51, 3), (53, 4), (50.2, 6))]
    expected = stats.dunnett(*groups[1:], control=groups[0], random_state=np.random.default_rng(0))
    limits = expected.confidence_interval(0.95)
    cells = {str(i): by_seed(group.tolist()) for i, group in enumerate(groups[1:])}
    found = dunnett(cells, by_seed(groups[0].tolist()), "top1")
    assert list(found.p.values()) == pytest.approx(expected.pvalue, abs=5e-4)
    for (low, high), *theirs in zip(found.intervals.values(), limits.low, limits.high, strict=True):
        assert (low, high) == pytest.approx(theirs, abs=2e-3)


def test_dunnett_of_one_comparison_is_the_pooled_t_test():
    first, second = [60.0, 61.0, 62.5], [70.0, 71.2, 73.0]
    found = dunnett({"other": by_seed(second)}, by_seed(first), "top1")
    expected = stats.ttest_ind(second, first)
    assert found.p["other"] == pytest.approx(expected.pvalue, rel=1e-3)
    low, high = expected.confidence_interval(0.95)
    assert found.intervals["other"] == pytest.approx((low, high), rel=1e-3)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 20), (20, 2), (100, 100)])
def test_dunnett_of_one_comparison_is_the_pooled_t_test_for_few_seeds_and_far_differences(sizes):
    draw = np.random.default_rng(3)
    first, second = (draw.normal(0, 1, size).tolist() for size in sizes)
    for apart in (1.0, 10.0, 30.0):
        far = [apart + value for value in second]
        found = dunnett({"other": by_seed(far)}, by_seed(first), "top1")
        assert found.p["other"] == pytest.approx(stats.ttest_ind(far, first).pvalue, rel=1e-3, abs=1e-8)


def test_two_seeds_a_group_do_not_show_whether_variances_differ():
    groups = {name: by_seed([first, first + 1]) for name, first in {"other": 3.0, "third": 5.0}.items()}
    assert math.isnan(dunnett(groups, by_seed([1.0, 1.1]), "top1").p_spread)


def test_dunnett_reads_perplexities_by_their_logarithms_and_checks_the_spread():
    control, other = by_seed([100.0, 101.0, 102.0]), by_seed([200.0, 202.0, 204.0])  # twice as large, the same spread
    found = dunnett({"other": other}, control, "ppl")
    assert found.spread == pytest.approx(1.0)
    low, high = found.intervals["other"]
    assert math.sqrt((1 + low) * (1 + high)) == pytest.approx(2.0)  # + 100 %, in the middle of the logarithms
    groups = [np.log([100.0, 101.0, 102.0]), np.log([90.0, 92.0, 115.0])]
    wild = dunnett({"other": by_seed([90.0, 92.0, 115.0])}, control, "ppl")
    assert wild.spread == pytest.approx(np.std(groups[1]) / np.std(groups[0]))
    # Brown and Forsythe (1974): an analysis of variance of the distances from the medians
    distances = [abs(group - np.median(group)) for group in groups]
    assert wild.p_spread == pytest.approx(stats.f_oneway(*distances).pvalue)


def test_dunnett_leaves_out_what_has_one_seed_or_no_number():
    control = by_seed([60.0, 61.0, 62.0])
    cells = {"one": by_seed([60.0]), "diverged": by_seed([60.0, math.inf]), "good": by_seed([61.0, 62.0, 62.5])}
    assert list(dunnett(cells, control, "ppl").p) == ["good"]
    assert dunnett(cells, by_seed([60.0]), "ppl") is None


def test_dunnett_makes_no_claim_of_values_that_do_not_vary_or_have_no_logarithm():
    solved, also_solved, lost = (by_seed([value] * 3) for value in (100.0, 100.0, 61.2))
    assert dunnett({"same": also_solved, "other": lost}, solved, "top1") is None  # p was 0, of the equal one too
    control, zero = by_seed([0.5, 0.6, 0.7]), by_seed([0.0, 0.1, 0.2])
    assert list(dunnett({"zero": zero, "good": by_seed([0.5, 0.5, 0.6])}, control, "mse").p) == ["good"]
    assert dunnett({"good": control}, zero, "mse") is None


def test_a_tie_has_no_sign():
    assert change_text(59.99, 60.0, "ppl") == change_text(60.01, 60.0, "ppl") == "0.0%"
    assert change_text(91.999, 92.0, "top1") == "0.00 points"
    assert change_text(57.0, 60.0, "ppl") == "-5.0%"


@pytest.mark.parametrize(("value", "baseline", "change"), [(-0.5, 0.0, "-0.500"), (-1.0, -2.0, "+1.000")])
def test_a_change_from_zero_or_below_is_no_share_of_it(value, baseline, change):
    assert change_text(value, baseline, "loss") == change


# -- what cannot be stated ---------------------------------------------------------------------------------------------


def test_rounding_of_equal_values_is_no_difference_to_test():
    """0.1 + 0.2 is 0.3 up to its last bit: a difference of 6e-17 with one seed and of 0 with the other."""
    found = compare(Cell({1: 0.1 + 0.2, 2: 1.0}), Cell({1: 0.3, 2: 1.0}))
    assert (found.p, found.test) == (None, "")
    assert "same difference" in found.reason


def test_large_values_vary_where_their_last_bits_do_not():
    """Counts of 1e9 that differ by 1 in their last bits only, as all do up to 1e-9 of themselves."""
    found = compare(Cell({1: 1e9 + 0.5, 2: 1e9}), Cell({3: 1e9 + 0.25, 4: 1e9}))
    assert (found.p, found.reason) == (None, "values do not vary: no test")


@pytest.mark.filterwarnings("error")
def test_one_side_that_varies_is_enough_for_a_test():
    """Welch's test of a constant is the test of one sample against that number."""
    found = compare(by_seed([61.0, 61.0, 61.0]), by_seed([60.0, 60.5, 60.1], first=11))
    expected = stats.ttest_1samp([60.0, 60.5, 60.1], 61.0)
    low, high = expected.confidence_interval(0.95)
    assert (found.p, found.half_width) == pytest.approx((expected.pvalue, (high - low) / 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [math.inf, math.nan, 0.0, -0.5])
@pytest.mark.parametrize("first", [1, 11])
def test_a_value_without_a_logarithm_is_equivalent_to_nothing_on_either_side(wrong, first):
    cells = by_seed([0.5, 0.6, 0.7]), by_seed([0.5, wrong, 0.7], first)
    for one, other in (cells, cells[::-1]):
        assert equivalence(one, other, "mse") == Equivalence()


@pytest.mark.filterwarnings("error")
def test_values_that_do_not_vary_are_equivalent_to_nothing():
    """Neither paired nor by Welch, whose degrees of freedom are 0 / 0."""
    for first in (1, 11):
        assert equivalence(by_seed([60.0, 60.0]), by_seed([60.0, 60.0], first), "ppl") == Equivalence()


def test_the_margin_is_the_callers():
    """With twice the margin, log 1.02, the same shift of 1.2 % is equivalent, which with log 1.01 it is not."""
    logs = [0.0121, 0.0119, 0.0120, 0.0122]
    cells = by_seed([math.exp(d) for d in logs]), by_seed([1.0] * 4)
    assert equivalence(*cells, "ppl").p > 0.5
    expected = stats.ttest_1samp(logs, math.log(1.02), alternative="less").pvalue
    assert equivalence(*cells, "ppl", margin=0.02).p == pytest.approx(expected)


def test_dunnett_of_nothing_is_none():
    assert dunnett({}, by_seed([60.0, 61.0]), "ppl") is None
    assert dunnett({"one": by_seed([60.0])}, by_seed([60.0, 61.0]), "ppl") is None


@pytest.mark.filterwarnings("error")
def test_the_spread_of_groups_of_unequal_size_is_that_of_sample_deviations():
    """(1, 2): sd = sqrt(1 / 2). (1, 2, 3): sd = 1. With n in place of n - 1 it would be 1.63, not 1.41."""
    pair, triple = by_seed([1.0, 2.0]), by_seed([1.0, 2.0, 3.0])
    found = dunnett({"other": triple}, pair, "top1")
    assert found.spread == pytest.approx(math.sqrt(2))
    # distances from the medians, 1.5 and 2: two of 0.5, and 1, 0, 1
    assert found.p_spread == pytest.approx(stats.f_oneway([0.5, 0.5], [1.0, 0.0, 1.0]).pvalue)
    solved = dunnett({"solved": by_seed([100.0] * 3)}, triple, "top1")
    assert solved.spread == math.inf


def test_a_detectable_difference_is_printed_in_its_unit():
    found = Equivalence(0.5, 0.0234)
    assert verdict(Difference(1.0), "ppl", 0.5, found) == "undecided: finds 2.3 %"
    assert verdict(Difference(1.0), "top1", 0.5, Equivalence(0.5, 1.26)) == "undecided: finds 1.3 points"
    at_the_level = Equivalence(0.05, 0.0234)  # equivalent is p below 0.05, not at it
    assert verdict(Difference(1.0), "ppl", 0.5, at_the_level) == "undecided: finds 2.3 %"

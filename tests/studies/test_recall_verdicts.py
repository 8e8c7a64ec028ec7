"""Verdicts of studies/recall and studies/family on made-up runs, against scipy and by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.family.analyse import chosen_rates as chosen_rates_of_family
from studies.family.analyse import measured as measured_of_family
from studies.recall.analyse import chosen_rates, measured, verdicts

NOISE = np.array([0.3, -0.2, 0.1, -0.4, 0.2])


def runs(**accuracies) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"attention": name, "seed": seed, "accuracy": value}
            for name, values in accuracies.items()
            for seed, value in enumerate(values, 11)
        ]
    )


def test_p_is_welchs_and_corrected_by_holm():
    values = {"softmax": 60 + NOISE, "a": 60.9 - NOISE[::-1], "b": 60.1 + 0.5 * NOISE, "c": 50 + 2 * NOISE}
    found = verdicts(runs(**values), "accuracy")
    p = {name: stats.ttest_ind(own, values["softmax"], equal_var=False).pvalue for name, own in values.items()}
    # c is smallest: times 3; a the next: times 2; b the largest
    assert p["c"] < p["a"] < p["b"]
    assert found["p_different"].to_dict() == pytest.approx({"a": 2 * p["a"], "b": p["b"], "c": 3 * p["c"]})
    assert found["difference"].to_dict() == pytest.approx({name: values[name].mean() - 60 for name in "abc"})
    assert found.loc["c", "verdict"] == "worse"
    assert found.loc["b", "verdict"] == "equivalent"


def test_equivalence_is_two_one_sided_tests_within_one_point():
    """Of one comparison, which nothing corrects: the sample shifted by a point to either side."""
    softmax, own = 60 + NOISE, 60.4 - NOISE[::-1]
    (p,) = verdicts(runs(softmax=softmax, own=own), "accuracy")["p_equivalent"]
    low, high = (
        stats.ttest_ind(own, softmax + shift, equal_var=False, alternative=side).pvalue
        for shift, side in ((-1, "greater"), (1, "less"))
    )
    assert p == pytest.approx(max(low, high))
    assert 0.001 < p < 0.05


def test_without_any_variance_the_difference_decides():
    found = verdicts(runs(softmax=[100.0] * 5, same=[100.0] * 5, near=[99.5] * 5, far=[98.0] * 5), "accuracy")
    said = {"same": "equivalent", "near": "worse, equivalent", "far": "worse"}
    assert found["verdict"].to_dict() == said


def test_higher_is_better():
    found = verdicts(runs(softmax=60 + NOISE, above=70 + NOISE), "accuracy")
    assert found["verdict"].to_dict() == {"above": "better"}


def test_the_rate_is_that_of_the_largest_area_with_the_seed_of_the_choice():
    tried = [
        {"experiment": size, "attention": "softmax", "seed": seed, "lr": lr, "area": area}
        for size, seed, lr, area in (
            *(("recall_32", 1, 1e-3, 40.0), ("recall_32", 1, 1e-2, 70.0), ("recall_32", 1, 1e-1, 60.0)),
            *(("recall_32", 11, 1e-1, 90.0), ("recall_128", 1, 1e-3, 99.0)),  # another seed, another size
        )
    ]
    assert chosen_rates(pd.DataFrame(tried), "recall_32").to_dict() == {"softmax": 1e-2}


def test_an_attention_counts_from_three_fresh_seeds_on():
    seeds = {"softmax": range(11, 16), "three": range(11, 14), "two": (11, 12), "choice": (1, 2, 3, 4)}
    rows = pd.DataFrame(
        [
            {"experiment": "recall_32", "attention": name, "seed": seed}
            for name, of_name in seeds.items()
            for seed in of_name
        ]
    )
    counts = measured(rows, "recall_32")["attention"].value_counts().to_dict()
    assert counts == {"softmax": 5, "three": 3}


def test_in_the_family_recall_wants_a_large_area_and_regression_a_small_error_for_each_arm():
    rows = pd.DataFrame(
        [
            {
                "experiment": experiment,
                "seed": seed,
                "attention": "gaussian",
                "arm": arm,
                "lr": lr,
                "area": x,
                "valid": x,
            }
            for experiment, seed, arm, lr, x in (
                *(("family_recall", 1, "", 1e-3, 40.0), ("family_recall", 1, "", 1e-2, 70.0)),
                *(("family_regression", 0, "identity", 1e-3, 0.5), ("family_regression", 0, "identity", 1e-2, 0.7)),
                *(("family_regression", 0, "learned", 1e-3, 0.6), ("family_regression", 0, "learned", 1e-2, 0.4)),
                ("family_regression", 1, "learned", 1e-1, 0.1),  # not the seed of the choice
            )
        ]
    )
    assert chosen_rates_of_family(rows, "family_recall").to_dict() == {("gaussian", ""): 1e-2}
    expected = {("gaussian", "identity"): 1e-3, ("gaussian", "learned"): 1e-2}
    assert chosen_rates_of_family(rows, "family_regression").to_dict() == expected


def test_in_the_family_an_attention_counts_when_all_fresh_seeds_are_there():
    rows = pd.DataFrame(
        [
            {"experiment": "family_regression", "attention": "gaussian", "arm": arm, "seed": seed}
            for arm, seeds in {"identity": (1, 2, 3), "learned": (0, 1, 2)}.items()
            for seed in seeds
        ]
    )
    assert set(measured_of_family(rows, "family_regression")["arm"]) == {"identity"}

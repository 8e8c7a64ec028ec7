"""Verdicts of the plan of the study of real data, from differences worked out by hand."""

import math
import re

import pytest

from fourierformer.errors import SetupError
from fourierformer.results import collect, comparison
from fourierformer.results.measured import read_measured, write_measured
from studies.real_data.hypotheses import (
    EVIDENCE,
    FOURIER,
    GAUSSIAN,
    HERE,
    PLAN,
    SOFTMAX,
    Hypothesis,
    decide,
    hypothesis_table,
)
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

COLUMN = ("test", "segment")


def rows_of(root, **perplexities):
    for attention, values in perplexities.items():
        settings = {"settings": {"eps": 1e-6} if attention == "fourier" else {}}
        for seed, ppl in values.items():
            write_run(root, attention, seed, ppl, changes=settings)
    return comparison(collect(root))


def test_a_difference_is_paired_over_the_seeds_that_both_have(tmp_path):
    softmax = {1: 60.0, 2: 64.0, 3: 62.0, 4: 99.0}
    rows = rows_of(tmp_path, softmax=softmax, fourier={1: 58.0, 2: 61.0, 3: 61.0})  # -2, -3, -1
    (decision,) = decide(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)])
    assert decision.first.n == 3
    assert decision.difference.mean == pytest.approx(-2)
    # t(0.975, 2) sd / sqrt(n) = 4.3027 * 1 / sqrt(3); t = -3.4641, p of two sides with 2 degrees of freedom = 0.0742
    assert decision.difference.half_width == pytest.approx(2.4841, abs=1e-4)
    assert decision.p == pytest.approx(0.0742, abs=1e-4)
    assert decision.verdict(higher_is_better=False) == "not decided"
    (line,) = hypothesis_table(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)]).body
    assert line[:5] == ["H1", "fourier eps=1e-06 - softmax", "3", "-2.00 ± 2.48", "-3.2% ± 3.8%"]  # 2/60, 3/64, 1/62


def test_committed_rows_are_decided_like_their_run_directories(tmp_path):
    """Knobs of a collected row are text; eps = 0 and eps = 1e-6 are two configurations of one attention."""
    for seed in (1, 2):
        write_run(tmp_path / "runs", "softmax", seed, 60.0 + seed)
        for eps, ppl, hash in ((1e-6, 58.0, "aa"), (0.0, 59.0, "bb")):
            changes = {"settings": {"eps": eps}, "group": f"group of eps {eps}"}
            run = write_run(tmp_path / "runs", "fourier", seed, ppl + 2 * seed, changes=changes)
            run.rename(run.with_name(f"lm_tiny-fourier-s{seed}-{hash}"))
    runs = collect(tmp_path / "runs")
    write_measured(runs, tmp_path / "evidence.csv")
    from_runs, from_file = (
        decide(comparison(each), COLUMN) for each in (runs, read_measured(tmp_path / "evidence.csv"))
    )
    assert [decision.hypothesis.name for decision in from_file] == ["H1", "H4"]
    assert from_file == from_runs


@pytest.mark.parametrize(("sign", "worse", "verdict"), [
    (-1, False, "confirmed"), (1, False, "contradicted"), (1, True, "confirmed"), (-1, True, "contradicted"),
])  # fmt: skip
def test_the_sign_decides_as_the_hypothesis_says(tmp_path, sign, worse, verdict):
    softmax = {1: 60.0, 2: 64.0, 3: 62.0}
    other = {seed: ppl + sign * (5 + 0.1 * seed) for seed, ppl in softmax.items()}
    rows = rows_of(tmp_path, softmax=softmax, gaussian=other)
    (decision,) = decide(rows, COLUMN, [Hypothesis("H", GAUSSIAN, SOFTMAX, worse)])
    assert decision.p < 0.001
    assert decision.verdict(higher_is_better=False) == verdict
    assert decision.verdict(higher_is_better=True) != verdict


def test_p_is_corrected_over_what_was_run(tmp_path):
    softmax = {1: 60.0, 2: 64.0, 3: 62.0}
    shifted = {seed: ppl - 2 - 0.5 * seed for seed, ppl in softmax.items()}
    rows = rows_of(tmp_path, softmax=softmax, fourier=shifted)
    (alone,) = decide(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)])
    twice = decide(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)] * 2)
    assert [decision.p for decision in twice] == [pytest.approx(2 * alone.p)] * 2
    assert decide(rows, COLUMN, [Hypothesis("H3", GAUSSIAN, SOFTMAX)]) == []


def test_a_single_seed_decides_nothing(tmp_path):
    rows = rows_of(tmp_path, softmax={1: 60.0}, fourier={1: 10.0})
    (decision,) = decide(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)])
    assert (decision.p, decision.verdict(higher_is_better=False)) == (None, "not decided")


def test_of_two_groups_of_one_configuration_none_is_chosen_silently(tmp_path):
    """With another learning rate, say, which the plan does not name."""
    rows_of(tmp_path, softmax={1: 60.0, 2: 64.0}, fourier={1: 58.0, 2: 61.0})
    write_run(tmp_path, "softmax", 3, 50.0, changes={"group": "another rate"})
    with pytest.raises(SetupError, match=r"softmax has several groups of runs \(another rate, group-softmax\)"):
        decide(comparison(collect(tmp_path)), COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)])


def test_the_table_says_how_many_comparisons_p_is_corrected_over(tmp_path):
    rows = rows_of(tmp_path, softmax={1: 60.0, 2: 64.0}, fourier={1: 58.0, 2: 61.0}, gaussian={1: 59.0})
    plan = [Hypothesis("H1", FOURIER, SOFTMAX), Hypothesis("H3", GAUSSIAN, SOFTMAX)]
    assert "over the comparisons that have one, here 1 of 2" in hypothesis_table(rows, COLUMN, plan).notes[0]


@pytest.mark.parametrize(
    ("without_eps", "softmax", "verdict"),
    [(62.0, 60.0, "confirmed"), (58.0, 60.0, "not decided"), (62.0, math.nan, "not decided")],
)
def test_worse_than_with_eps_confirms_h4_only_if_it_is_not_better_than_softmax(tmp_path, without_eps, softmax, verdict):
    for seed in (1, 2, 3):
        write_run(tmp_path, "softmax", seed, softmax + seed)
        for eps, ppl in ((1e-6, 55.0), (0.0, without_eps)):
            changes = {"settings": {"eps": eps}, "group": f"group of eps {eps}"}
            run = write_run(tmp_path, "fourier", seed, ppl + (1.01 if eps else 1.02) * seed, changes=changes)
            run.rename(run.with_name(f"lm_tiny-fourier-s{seed}-{eps}"))
    (decision,) = [found for found in decide(comparison(collect(tmp_path)), COLUMN) if found.hypothesis.name == "H4"]
    assert decision.difference.mean == pytest.approx(without_eps - 55 + 0.02)
    assert decision.verdict(higher_is_better=False) == verdict


def test_the_relative_difference_has_an_interval(tmp_path):
    rows = rows_of(tmp_path, softmax={1: 50.0, 2: 100.0}, fourier={1: 45.0, 2: 92.0})  # -10 % and -8 %
    (line,) = hypothesis_table(rows, COLUMN, [Hypothesis("H1", FOURIER, SOFTMAX)]).body
    assert line[4] == "-9.0% ± 12.7%"  # t(0.975, 1) sd / sqrt(n) = 12.706 * 1.41421 % / sqrt(2)


def test_the_plan_is_the_documents():
    text = (REPOSITORY / "studies/real_data/plan.md").read_text().split("## The plan")[1].split("\n## ")[0]
    planned = []
    for name, comparisons in re.findall(r"^\| (H\d) \|.*\| (.*) \|$", text, flags=re.M):
        for comparison_ in comparisons.split(", "):
            first, second = comparison_.split("- ")
            first = first.strip() or planned[-1][1]  # "- `fourier`": of the one before
            planned.append((name, first, second))
    names = {"fourier eps=1e-06": "`fourier`", "fourier eps=0": "`fourier` with eps 0"}
    ours = [(each.name, str(each.first), str(each.second)) for each in PLAN]
    assert [(name, *(names.get(word, f"`{word}`") for word in words)) for name, *words in ours] == [
        (name, first, second if second.startswith("`") else f"`{second}`") for name, first, second in planned
    ]


def test_what_is_called_not_tested_has_no_row():
    """The summary is written by hand, and rows are added after it."""
    summary = (REPOSITORY / "studies/real_data/README.md").read_text().split("## In short")[1].split("\n## ")[0]
    measured = {
        decision.hypothesis.name
        for name, column in EVIDENCE.items()
        if (file := HERE / f"{name}.csv").is_file()
        for decision in decide(comparison(read_measured(file)), column)
    }
    assert measured
    assert not measured & set(re.findall(r"H\d", summary.partition("- Not tested:")[2]))

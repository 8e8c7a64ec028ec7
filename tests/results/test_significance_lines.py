"""The sentences about differences: who is compared with whom, how, and when nothing is claimed."""

import json
import math
import re

import pytest
from scipy import stats

from fourierformer.report.runs import headline
from fourierformer.results import collect, comparison, tables
from fourierformer.results.baseline import pairs, significance_lines, without_baseline
from fourierformer.results.comparison import Cell
from fourierformer.results.statistics import equivalence
from fourierformer.results.tables import best_tables
from tests.helpers.synthetic_runs import evaluation, write_run, write_vision_run

SOFTMAX = [61.2, 60.1, 63.7, 59.9, 60.4]
FOURIER = [58.3, 58.7, 61.9, 58.4, 57.2]
GAUSSIAN = [61.0, 60.4, 63.4, 60.0, 60.5]
TEST = [("test", "segment")]


def write(root, attention, values, first=1, **changes):
    for seed, value in enumerate(values, first):
        write_run(root, attention, seed, value, **changes)


def claims(root, columns=TEST) -> list[str]:
    return significance_lines(comparison(collect(root)), columns)


def test_a_clear_difference_of_the_same_seeds(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    write(tmp_path, "fourier", FOURIER)
    line, how = claims(tmp_path)
    expected = stats.ttest_rel(FOURIER, SOFTMAX)
    low, high = expected.confidence_interval(0.95)
    p = re.search(r"p = ([\d.e-]+)", line)
    assert line.startswith(
        f"fourier - softmax: test segment {(low + high) / 2:.2f} ± {(high - low) / 2:.2f} (paired t-test"
    )
    assert float(p[1]) == pytest.approx(expected.pvalue, rel=0.05)
    assert line.endswith("better)")
    assert "Holm" in how
    assert "here 1;" in how


def test_every_comparison_of_the_table_counts_in_the_correction(tmp_path):
    for name, values in (("softmax", SOFTMAX), ("fourier", FOURIER), ("gaussian", GAUSSIAN)):
        write(tmp_path, name, values)
    fourier, gaussian, how = claims(tmp_path)
    small, large = (stats.ttest_rel(values, SOFTMAX).pvalue for values in (FOURIER, GAUSSIAN))
    assert small < large  # so Holm doubles the first and leaves the second
    shown = [float(re.search(r"p = ([\d.e-]+)", line)[1]) for line in (fourier, gaussian)]
    assert shown == pytest.approx([2 * small, large], rel=0.05)
    assert re.search("equivalent within 1 %|undecided: finds", gaussian)
    assert "here 2;" in how


def test_tests_of_equivalence_are_corrected_too(tmp_path):
    for name, values in (("softmax", SOFTMAX), ("fourier", FOURIER), ("gaussian", GAUSSIAN)):
        write(tmp_path, name, values)
    found = {pair.row.attention: pair.equivalence.p for pair in pairs(comparison(collect(tmp_path)), TEST)}
    cells = [Cell(dict(enumerate(values, 1))) for values in (FOURIER, GAUSSIAN, SOFTMAX)]
    fourier, gaussian = (equivalence(cell, cells[-1], "ppl").p for cell in cells[:-1])
    assert 2 * gaussian < fourier  # so Holm doubles the second and leaves the first
    assert found == pytest.approx({"fourier": fourier, "gaussian": 2 * gaussian})


def test_other_seeds_are_compared_by_welch(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    write(tmp_path, "fourier", FOURIER, first=11)
    line, _ = claims(tmp_path)
    assert "Welch's t-test" in line


def test_higher_accuracy_is_better_and_higher_perplexity_worse(tmp_path):
    for seed, (softmax, fourier) in enumerate(zip(SOFTMAX, FOURIER, strict=True), 1):
        write_vision_run(tmp_path / "v", "softmax", seed, softmax)
        write_vision_run(tmp_path / "v", "fourier", seed, fourier)
    line, _ = claims(tmp_path / "v", [("valid", "best")])
    assert line.endswith("worse)")
    write(tmp_path / "l", "softmax", FOURIER)
    write(tmp_path / "l", "fourier", SOFTMAX)
    line, _ = claims(tmp_path / "l")
    assert line.endswith("worse)")


def test_one_seed_each_is_said_once_for_the_table(tmp_path):
    write(tmp_path, "softmax", [61.2])
    write(tmp_path, "fourier", [58.3])
    assert claims(tmp_path) == []
    (table,) = tables(comparison(collect(tmp_path)))
    assert any(note.startswith("n = 1: one seed supports no claim") for note in table.notes)


def test_one_seed_among_several_is_said_for_its_pair(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    write(tmp_path, "fourier", FOURIER)
    write(tmp_path, "gaussian", GAUSSIAN[:1])
    _, gaussian, how = claims(tmp_path)
    assert gaussian.endswith("(n = 1: no claim)")
    assert "here 1;" in how  # what is not tested does not count


def test_an_infinite_perplexity_is_no_number_to_test(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    write(tmp_path, "fourier", FOURIER[:4])
    broken = {"test": {"segment": evaluation(60) | {"ppl": math.inf}}}
    write_run(tmp_path, "fourier", 5, changes={"results": broken})
    assert claims(tmp_path) == ["fourier - softmax: test segment (infinite with seed 5: no claim)"]


def test_no_pair_without_one_softmax_row_of_the_model(tmp_path):
    write(tmp_path, "fourier", FOURIER)
    assert claims(tmp_path) == []
    write(tmp_path, "softmax", SOFTMAX, changes={"model": "another"})
    assert claims(tmp_path) == []
    write(tmp_path / "a", "softmax", SOFTMAX, changes={"group": "a"})
    write(tmp_path / "b", "softmax", SOFTMAX, changes={"group": "b"})
    assert claims(tmp_path) == []


def test_what_was_scored_differently_is_not_compared(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    for seed, value in enumerate(FOURIER, 1):
        write_run(tmp_path, "fourier", seed, changes={"results": {"test": {"segment": evaluation(value, tokens=500)}}})
    assert claims(tmp_path) == []


def test_the_detectable_difference_is_said_to_be_that_of_a_single_test(tmp_path):
    """The difference, 3.9 %, is as large as what is found, its p of 0.023 below 0.05, and yet undecided: of four tests
    the smallest p has to be below 0.0125."""
    write(tmp_path, "softmax", [60.0, 61.0, 62.0, 63.0, 64.0])
    write(tmp_path, "fourier", [62.0, 63.0, 66.6, 63.5, 67.0])
    line, how = claims(tmp_path, [(split, name) for split in ("valid", "test") for name in ("segment", "sliding")])
    assert line.count("p = 0.092: undecided: finds 3.9 %") == 4
    assert "a single test, before the correction" in how


def test_the_margin_of_accuracies_is_said_to_be_in_points(tmp_path):
    for seed in (1, 2, 3):
        write_vision_run(tmp_path, "softmax", seed, 50.0 + seed)
        write_vision_run(tmp_path, "fourier", seed, 50.1 + seed + seed / 10)
    line, how = claims(tmp_path, [("valid", "best")])
    assert "equivalent within 1 points" in line  # of 50: 2 %
    assert "within 1 points" in how


def test_the_lines_stand_under_the_table_with_the_names_of_the_table(tmp_path):
    write(tmp_path, "softmax", SOFTMAX)
    for radius, group in (("paper", "a"), ("matched", "b")):
        changes = {"group": group, "settings": {"power": 4, "radius": radius}}
        write(tmp_path / radius, "fourier", FOURIER, changes=changes)
    (table,) = tables(comparison(collect(tmp_path)))
    named = {line[0] for line in table.body}
    assert named == {"softmax", "fourier radius=paper", "fourier radius=matched"}
    assert sum(line.startswith("fourier radius=") for line in table.findings if " - softmax: " in line) == 2


# -- settings other than the attention ---------------------------------------------------------------------------------

RATES = {("softmax", 0.001): SOFTMAX, ("softmax", 0.002): FOURIER, ("fourier", 0.002): GAUSSIAN}


def write_rates(root, values=RATES, valid=None) -> None:
    for (attention, lr), numbers in values.items():
        config = {"optim.lr": lr, "model.layers": 2, "attention.name": attention}
        for seed, value in enumerate(numbers, 1):
            results = {"test": {"segment": evaluation(value)}}
            if valid:
                results["valid"] = {"segment": evaluation(valid[attention, lr][seed - 1])}
            changes = {"group": f"{attention}{lr}", "config": config, "results": results}
            write_run(root / f"{attention}{lr}", attention, seed, changes=changes)


def test_rows_are_compared_at_equal_settings_only(tmp_path):
    write_rates(tmp_path)
    (line, _) = claims(tmp_path)
    assert line.startswith("fourier lr=0.002 - softmax lr=0.002: test segment")
    expected = stats.ttest_rel(GAUSSIAN, FOURIER)
    assert float(re.search(r"p = ([\d.e-]+)", line)[1]) == pytest.approx(expected.pvalue, rel=0.05)


def test_no_p_across_settings_and_a_line_with_the_way_out(tmp_path):
    write_rates(tmp_path, {key: RATES[key] for key in (("softmax", 0.001), ("fourier", 0.002))})
    assert claims(tmp_path) == []
    (line,) = without_baseline(comparison(collect(tmp_path)))
    assert "fourier lr=0.002" in line
    assert "attention=softmax optim.lr=0.002" in line
    assert "--best-by valid" in line
    (table,) = tables(comparison(collect(tmp_path)))
    assert [row[0] for row in table.body] == ["softmax lr=0.001", "fourier lr=0.002"]  # each row shows what differs
    assert not any(table.differences)


def test_the_way_out_is_written_as_on_the_command_line(tmp_path):
    ours = {"trainer.patience": None, "trainer.compile": True, "optim.betas": [0.9, 0.99]}
    theirs = {"trainer.patience": 3, "trainer.compile": False, "optim.betas": [0.9, 0.95]}
    for attention, config in (("softmax", theirs), ("fourier", ours)):
        write_run(tmp_path, attention, 1, changes={"config": config})
    (line,) = without_baseline(comparison(collect(tmp_path)))
    assert "(attention=softmax trainer.patience=null trainer.compile=true 'optim.betas=[0.9, 0.99]')" in line


def test_the_way_out_names_what_the_row_has_not(tmp_path):
    """A key that was added later is left out of a config where it has its neutral value."""
    for attention, norm in (("softmax", {"model.norm": "pre"}), ("fourier", {})):
        write_run(tmp_path, attention, 1, changes={"config": {"optim.lr": 0.001} | norm})
    (line,) = without_baseline(comparison(collect(tmp_path)))
    assert "(attention=softmax model.norm=post)" in line


def test_the_best_settings_are_chosen_by_validation_not_by_test(tmp_path):
    """softmax has its best test perplexity at 0.002, its best validation at 0.001."""
    worse = [value + 1 for value in SOFTMAX]
    valid = {("softmax", 0.001): SOFTMAX, ("softmax", 0.002): worse, ("fourier", 0.002): SOFTMAX}
    valid |= {("fourier", 0.001): worse, ("gaussian", 0.001): SOFTMAX}
    write_rates(tmp_path, RATES | {("fourier", 0.001): SOFTMAX, ("gaussian", 0.001): SOFTMAX}, valid)
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert [line[0] for line in table.body] == ["softmax lr=0.001", "fourier lr=0.002"]
    assert "softmax lr=0.001 of 2" in " ".join(table.notes)
    assert "left out, since tried at one setting only: gaussian lr=0.001" in table.notes
    line = next(line for line in table.findings if line.startswith("fourier"))
    found = re.search(r"test segment .*?p = ([\d.e-]+)", line)
    assert float(found[1]) > stats.ttest_rel(GAUSSIAN, SOFTMAX).pvalue / 2  # of GAUSSIAN against softmax at 0.001
    assert "lr=0.002 - softmax lr=0.001" in line


def test_the_best_settings_have_the_best_mean_not_the_best_seed(tmp_path):
    lucky, steady = [50.0, 80.0], [60.0, 61.0]
    valid = {("softmax", 0.001): lucky, ("softmax", 0.002): steady}
    valid |= {("fourier", 0.001): steady, ("fourier", 0.002): lucky}
    write_rates(tmp_path, dict.fromkeys(valid, steady), valid)
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert [line[0] for line in table.body] == ["softmax lr=0.002", "fourier lr=0.001"]


def test_each_choice_of_knobs_is_an_attention_of_its_own(tmp_path):
    """For each radius the better rate is chosen, not the better radius."""
    for radius, best in ((1, 0.001), (2, 0.002)):
        for lr in (0.001, 0.002):
            config = {"optim.lr": lr, "attention.name": "fourier", "attention.radius": radius}
            ppl, name = 60.0 + 5 * radius + (lr != best), f"{radius}-{lr}"
            write_run(tmp_path / name, "fourier", 1, ppl, changes={"group": name, "config": config})
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert [line[0] for line in table.body] == ["fourier radius=1 lr=0.001", "fourier radius=2 lr=0.002"]


def test_the_best_accuracy_is_the_highest(tmp_path):
    best = {"softmax": 0.001, "fourier": 0.002}
    for attention in best:
        for lr in best.values():
            changes = {"group": f"{attention}{lr}", "config": {"optim.lr": lr}}
            write_vision_run(tmp_path / str(lr), attention, 1, 70.0 if lr == best[attention] else 60.0, changes=changes)
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert [line[0] for line in table.body[:2]] == ["softmax lr=0.001", "fourier lr=0.002"]


def test_settings_that_diverged_are_not_the_best(tmp_path):
    lost = [math.nan, *SOFTMAX[1:]]
    valid = {
        ("softmax", 0.001): lost,
        ("softmax", 0.002): SOFTMAX,
        ("fourier", 0.001): SOFTMAX,
        ("fourier", 0.002): lost,
    }
    write_rates(tmp_path, dict.fromkeys(valid, SOFTMAX), valid)
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert [line[0] for line in table.body] == ["softmax lr=0.002", "fourier lr=0.001"]


def write_seq2seq(root, attention, cross, values, state="completed") -> None:
    config = {"optim.lr": 0.001, "attention.name": attention, "decoder_attention": None, "cross_attention": cross}
    facts = {"task": "seq2seq", "unit": "pairs", "pairs": 64000, "primary": "exact", "config": config}
    for seed, value in enumerate(values, 1):
        numbers = {"greedy": {"nll": 0.1, "exact": value, "pairs": 2000}}
        changes = facts | {"group": f"{attention}{cross}", "results": {"valid": numbers, "test": numbers}}
        write_run(root / f"{attention}{cross}", attention, seed, state=state, changes=changes)


def test_softmax_with_another_cross_attention_is_compared_and_is_no_baseline(tmp_path):
    write_seq2seq(tmp_path, "softmax", None, [61, 62, 63.5])
    write_seq2seq(tmp_path, "softmax", "fourier", [80, 81, 83])
    write_seq2seq(tmp_path, "fourier", None, [70, 71, 72])
    write_seq2seq(tmp_path, "fourier", "softmax", [65, 65, 67])
    rows = comparison(collect(tmp_path))
    lines = significance_lines(rows, [("test", "greedy")])[:-1]
    assert sorted(line.split(": test")[0] for line in lines) == [
        "fourier cross_attention=null - softmax cross_attention=null",
        "fourier cross_attention=softmax - softmax cross_attention=null",
        "softmax cross_attention=fourier - softmax cross_attention=null",
    ]
    assert without_baseline(rows) == []
    assert best_tables(rows) == []  # they differ in their attentions alone


def test_settings_at_which_a_seed_diverged_are_not_the_best(tmp_path):
    """The mean over the seeds that are left is that of the lucky ones."""
    rates = {("softmax", 0.001): SOFTMAX, ("softmax", 0.002): [50.0], ("fourier", 0.001): FOURIER}
    write_rates(tmp_path, rates | {("fourier", 0.002): GAUSSIAN}, rates | {("fourier", 0.002): GAUSSIAN})
    lost = {"group": "softmax0.002", "config": {"optim.lr": 0.002, "model.layers": 2, "attention.name": "softmax"}}
    run = write_run(tmp_path / "lost", "softmax", 2, state="diverged")
    meta = json.loads((run / "meta.json").read_text()) | lost | {"model": "lm_tiny", "attention": "softmax", "seed": 2}
    (run / "meta.json").write_text(json.dumps(meta))
    rows = comparison(collect(tmp_path))
    (table,) = best_tables(rows)
    assert [row.config["optim.lr"] for row in table.rows] == [0.001, 0.001]
    assert "left out, since some of its seeds diverged: softmax lr=0.002" in table.notes
    (line,) = (line for line in significance_lines(rows, TEST) if line.startswith("fourier lr=0.002"))
    assert line.startswith("fourier lr=0.002 - softmax lr=0.002 (of the seeds that have not diverged): ")
    (whole,) = tables(rows)
    assert "softmax lr=0.001" in headline(whole) or "fourier" in headline(whole).split(" with ")[0]
    assert "softmax lr=0.002" not in headline(whole)
    assert not any(whole.body[line][0] == "softmax lr=0.002" for line, _ in whole.best)


@pytest.mark.parametrize("lost", ["softmax", "fourier"])
def test_a_comparison_says_that_a_seed_of_either_side_has_diverged(tmp_path, lost):
    write(tmp_path, "softmax", SOFTMAX)
    write(tmp_path, "fourier", FOURIER)
    write_run(tmp_path, lost, 6, state="diverged")
    line, _ = claims(tmp_path)
    assert line.startswith("fourier - softmax (of the seeds that have not diverged): test segment")


def test_settings_that_were_scored_on_fewer_tokens_are_not_the_best(tmp_path):
    rates = RATES | {("fourier", 0.001): FOURIER}
    write_rates(tmp_path, rates, rates)
    for seed, value in enumerate([40.0, 41.0], 1):
        numbers = {"segment": evaluation(value) | {"tokens": 1000}}
        config = {"optim.lr": 0.004, "model.layers": 2, "attention.name": "softmax"}
        changes = {"group": "short", "config": config, "results": {"valid": numbers, "test": numbers}}
        write_run(tmp_path / "short", "softmax", seed, changes=changes)
    (table,) = best_tables(comparison(collect(tmp_path)))
    assert "left out, since scored differently: softmax lr=0.004" in table.notes
    assert all("lr=0.004" not in line[0] for line in table.body)


def test_numbers_that_are_equal_are_the_same_setting(tmp_path):
    """weight_decay=0 and =0.0 have different hashes."""
    for attention, decay, seeds in (("softmax", 0, range(5)), ("fourier", 0.0, range(3)), ("fourier", 0, range(3, 5))):
        config = {"optim.weight_decay": decay, "attention.name": attention, "model.layers": 2}
        changes = {"group": f"{attention}{decay}", "config": config}
        for seed in seeds:
            ppl = (SOFTMAX if attention == "softmax" else FOURIER)[seed]
            write_run(tmp_path / str(decay), attention, seed, ppl, changes=changes)
    rows = comparison(collect(tmp_path))
    assert [(row.attention, row.n) for row in rows] == [("softmax", 5), ("fourier", 5)]
    (line, _) = significance_lines(rows, TEST)
    assert line.startswith("fourier - softmax: test segment")
    assert without_baseline(rows) == []


def test_settings_without_the_number_that_chooses_are_named(tmp_path):
    for attention in ("softmax", "fourier", "gaussian"):
        for lr in (0.001, 0.002):
            results = {"segment": evaluation(60.0)}
            results |= {"sliding": evaluation(55.0 + lr, 1)} if attention != "gaussian" else {}
            changes = {"group": f"{attention}{lr}", "config": {"optim.lr": lr}, "results": {"valid": results}}
            write_run(tmp_path / str(lr), attention, 1, changes=changes)
    (table,) = best_tables(comparison(collect(tmp_path)))
    (line,) = (note for note in table.notes if note.startswith("left out"))
    assert line == "left out, since without valid sliding perplexity: gaussian lr=0.001, gaussian lr=0.002"


def test_a_table_of_equal_settings_has_no_best_table(tmp_path):
    write_rates(tmp_path, {("softmax", 0.001): SOFTMAX, ("fourier", 0.001): FOURIER})
    assert best_tables(comparison(collect(tmp_path))) == []

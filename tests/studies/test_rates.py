"""The tables of studies/rates on made-up runs: whom a rate is chosen by, and verdicts against scipy."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.rates import analyse

CHANGES = {"softmax": 0.0, "gaussian": 0.0005, "matched": 0.03, "matched, eps 0": -0.05}  # of the log of the perplexity


@pytest.fixture
def rows():
    """At 1e-3 validation is better and the test worse. The fresh seeds are at 1e-3; those at 2e-3 would turn signs."""
    draw, found = np.random.default_rng(0), []
    for name, change in CHANGES.items():
        for seed in analyse.CHOICE:
            found.append((name, 1e-3, seed, 100.0 + seed, 110.0 + seed))
            found.append((name, 2e-3, seed, 105.0 + seed, 90.0 + seed))
        for seed in analyse.FRESH:
            found.append((name, 1e-3, seed, 0.0, 100 * np.exp(change + 0.004 * draw.normal())))
    rows = pd.DataFrame(found, columns=["name", "lr", "seed", "valid", "test"])
    return rows.assign(share=1.0, least_share=0.5).sort_values(["name", "lr", "seed"])


def fresh_logs(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    fresh = rows[rows["seed"].isin(analyse.FRESH)].pivot(index="seed", columns="name", values="test")
    return {name: np.log(fresh[name] / fresh["softmax"]).to_numpy() for name in analyse.COMPARED[1:]}


def lines_of(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines}


def corrected(p: list[float]) -> list[float]:
    """Holm's correction of three: the smallest times 3, the next times 2, never falling."""
    order = np.argsort(p)
    found = np.empty(3)
    found[order] = np.maximum.accumulate(np.sort(p) * [3, 2, 1]).clip(max=1)
    return found.tolist()


def test_the_rate_is_chosen_by_validation_on_the_seeds_of_the_choice(rows):
    assert dict(analyse.chosen(analyse.summary(rows)).index) == dict.fromkeys(CHANGES, 1e-3)


def test_a_difference_is_that_of_one_to_the_other_over_the_seeds_that_both_have(rows):
    lost = (rows["name"] == "softmax") & (rows["seed"] == analyse.FRESH[0])
    logs = analyse.differences(rows[~lost], ("matched", 1e-3), ("softmax", 1e-3), analyse.FRESH)
    assert list(logs.index) == list(analyse.FRESH)[1:]
    assert logs.to_numpy() == pytest.approx(fresh_logs(rows)["matched"][1:])
    assert analyse.differences(rows, ("matched", 7e-3), ("softmax", 1e-3), analyse.FRESH).empty


def test_changes_and_their_intervals_are_relative():
    """Logs 0.09, 0.11: the mean is e^0.1 - 1 = 10.5 %; t(0.975, 1) sd / sqrt(2) = 12.706 x 0.01 = 0.12706."""
    low, high = (100 * np.expm1(0.1 + sign * 0.12706) for sign in (-1, 1))
    assert analyse.change_text(pd.Series([0.09, 0.11])) == f"+10.5 % [{low:+.1f}, {high:+.1f}]"
    assert analyse.change_text(pd.Series([0.1])) == "+10.5 %"


def test_the_primary_table_has_the_paired_tests_of_scipy_corrected_by_holm(rows):
    lines, logs = lines_of(analyse.primary_table(rows, analyse.FRESH)), fresh_logs(rows)
    different = corrected([stats.ttest_1samp(each, 0).pvalue for each in logs.values()])
    bound = np.log(1.01)
    equivalent = corrected(
        [
            max(
                stats.ttest_1samp(each, bound, alternative="less").pvalue,
                stats.ttest_1samp(each, -bound, alternative="greater").pvalue,
            )
            for each in logs.values()
        ]
    )
    assert [lines[name][2] for name in logs] == [f"{p:.2g}" for p in different]
    assert [lines[name][3] for name in logs] == [f"{p:.2g}" for p in equivalent]
    verdicts = [lines[name][4] for name in logs]
    assert verdicts == ["equivalent within 1 %", "worse", "better"]
    assert lines["matched"][1] == analyse.change_text(pd.Series(logs["matched"]))


def repeated(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """The rows with ten fresh seeds at 1e-3 for each of the names, five for the others."""
    draw, found = np.random.default_rng(2), []
    for name, change in CHANGES.items():
        for seed in analyse.REPLICATION[: 10 if name in names else 5]:
            found.append((name, 1e-3, seed, 0.0, 100 * np.exp(change + 0.01 * draw.normal()), 1.0, 0.5))
    return pd.concat([rows, pd.DataFrame(found, columns=rows.columns)]).sort_values(["name", "lr", "seed"])


def test_a_comparison_of_the_replication_is_judged_by_three_times_its_p_when_its_runs_are_there(rows):
    rows = repeated(rows, ["softmax", "matched"])
    waiting, _, table = analyse.replication(rows).partition("\n\n")
    assert waiting.startswith("30 of 40 runs are measured. A comparison is judged when its 20 runs are")
    fresh = rows[rows["seed"].isin(analyse.REPLICATION)].pivot(index="seed", columns="name", values="test")
    logs = np.log(fresh["matched"] / fresh["softmax"])
    lines = lines_of(table)
    assert list(lines)[2:] == ["softmax", "matched"]
    assert lines["matched"][2:] == [f"{3 * stats.ttest_1samp(logs, 0).pvalue:.2g}", "1", "worse"]


@pytest.mark.parametrize("names", [[], ["softmax"], ["matched", "gaussian"]])
def test_without_a_complete_comparison_the_replication_has_no_table(rows, names):
    assert "|" not in analyse.replication(repeated(rows, names))


def test_the_complete_replication_is_corrected_by_holm(rows):
    rows = repeated(rows, list(CHANGES))
    assert analyse.replication(rows) == analyse.primary_table(rows, analyse.REPLICATION)


def test_what_is_undecided_has_the_difference_that_a_test_of_power_four_fifths_finds(rows):
    noisy = rows.assign(test=rows["test"] * np.exp(0.02 * np.random.default_rng(1).normal(size=len(rows))))
    lines, logs = lines_of(analyse.primary_table(noisy, analyse.FRESH)), fresh_logs(noisy)
    error = stats.sem(logs["gaussian"])
    smallest = np.expm1((stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * error)
    assert lines["gaussian"][4] == f"undecided: finds {100 * smallest:.1f} %"


def test_sixteen_heads_are_compared_with_four_by_the_difference_of_both_changes():
    found = []
    for heads, change in ((16, 0.05), (4, 0.02)):
        for name, own in (("softmax", 0.0), ("matched, eps 0", change)):
            for seed in analyse.CHOICE:
                test = 100 * np.exp(own * (1 + 0.1 * seed))
                found.append((f"{name}, {heads} heads", 2e-3, seed, 100.0, test, 1.0))
    rows = pd.DataFrame(found, columns=["name", "lr", "seed", "valid", "test", "share"])
    rows = rows.sort_values(["name", "lr", "seed"])
    last = analyse.secondary_table(rows).splitlines()[-1]
    logs = pd.Series([0.03 * (1 + 0.1 * seed) for seed in analyse.CHOICE])
    assert f"the change with 16 heads, to that with 4 | 5 | {analyse.change_text(logs)} |" in last


CONFIG = {"model.layers": 4, "trainer.steps": 4000, "model.heads": 8, "attention.eps": 1e-6}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"attention.name": "fourier"}, "fourier (R = 2)"),
        ({"attention.name": "fourier", "trainer.steps": 8000}, None),  # another setting
        ({"attention.name": "fourier", "model.heads": 16}, "fourier (R = 2), 16 heads"),
        ({"attention.name": "fourier", "model.norm": "pre"}, "fourier (R = 2), pre-LN"),
        ({"attention.name": "another"}, None),
    ],
)
def test_the_name_of_a_run_says_its_setting(changes, name):
    assert analyse.name_of(CONFIG | changes) == name


@pytest.mark.parametrize(
    ("radius", "eps", "multiplier", "name"),
    [
        ("matched", 1e-6, 1.0, "matched"),
        ("matched", 0.0, 1.0, "matched, eps 0"),
        ("1", 1e-6, 1.0, "R = 1"),
        ("matched", 1e-6, 10.0, "R learns at 10 times the rate"),
        ("matched", 1e-6, 0.0, "R frozen"),
        ("3", 1e-6, 1.0, None),
    ],
)
def test_variants_of_matched_do_not_count_as_it(radius, eps, multiplier, name):
    knobs = {"attention.radius": radius, "attention.eps": eps, "attention.radius_lr_multiplier": multiplier}
    assert analyse.name_of(CONFIG | knobs | {"attention.name": "fourier_matched"}) == name


def test_attended_shares_are_1_without_eps_and_those_measured_on_test_with_it():
    layers = json.dumps({"test": [{"attended_share": 0.8}, {"attended_share": 0.2}], "valid": []})
    row = {"attention": "fourier", "head_layers": layers}
    assert analyse.attended_shares(pd.Series(row | {"eps": "1e-06"})) == [0.8, 0.2]
    assert analyse.attended_shares(pd.Series(row | {"eps": "0.0"})) == [1.0]
    assert analyse.attended_shares(pd.Series(row | {"eps": ""})) == [1.0]
    assert analyse.attended_shares(pd.Series({"attention": "none", "eps": ""})) == [0.0]
    (unknown,) = analyse.attended_shares(pd.Series({"attention": "fourier", "eps": "1e-06", "head_layers": None}))
    assert np.isnan(unknown)


def test_a_run_that_was_repeated_counts_once():
    """Seed 1 of softmax at 1e-3 was trained again on another processor, and its row is in the files."""
    rows = analyse.load()
    assert not rows.duplicated(["name", "lr", "seed"]).any()
    again = pd.concat(
        [pd.read_csv(path, comment="#", usecols=["attention", "seed", "config"]) for path in analyse.ROWS]
    )
    names, rates = again["config"].map(json.loads).map(analyse.name_of), again["config"].map(json.loads)
    rates = rates.map(lambda config: config["optim.lr"])
    assert ((names == "softmax") & (rates == 1e-3) & (again["seed"] == 1)).sum() == 2

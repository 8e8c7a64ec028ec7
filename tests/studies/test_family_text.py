"""Part W of studies/family on made-up runs: rates by validation, verdicts by Holm's correction over all of the plan."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.family import text

NOISE = {21: 0.999, 22: 1.0, 23: 1.001}  # the same seed moves every attention alike, but for a hundredth of that
FACTORS = {"forgetting": 0.9, "mlk": 1.1, "sink": 1.001}


def run(name, lr, seed, valid, test):
    return {"name": name, "lr": lr, "seed": seed, "valid": valid, "test": test}


@pytest.fixture
def rows():
    found = []
    for number, name in enumerate([*text.CONTROLS.values(), *text.MEMBERS]):
        chosen, other = (2e-3, 1e-3) if name in text.CONTROLS.values() else (1e-3, 2e-3)
        for seed, noise in NOISE.items():
            test = 150 * FACTORS.get(name, 1.0) * noise * (1 + 1e-5 * number * (seed - 22))
            found.append(run(name, chosen, seed, 160.0, test))
        found.append(run(name, other, 21, 160.0, 1.0))  # not counted
        if name in text.MEMBERS:
            found += [run(name, chosen, text.CHOICE, 170.0, 1.0), run(name, other, text.CHOICE, 171.0, 1.0)]
    return pd.DataFrame(found)


@pytest.fixture
def attacks():
    runs = [(name, seed) for name in [*text.CONTROLS.values(), *text.MEMBERS] for seed in text.SEEDS]
    rises = {0.025: 1.1, 0.1: 1.5}
    found = [
        {"name": name, "seed": seed, "level": level, "test": rise * (1 + 1e-5 * (seed - 22) * len(name))}
        for name, seed in runs
        for level, rise in rises.items()
    ]
    return pd.DataFrame(found)


def line_of(table, name):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| `{name}`")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_rate_is_that_of_the_lower_validation_perplexity(rows):
    rates = text.chosen_rates(rows)
    assert sorted(rates.index) == sorted(text.MEMBERS)
    assert set(rates) == {1e-3}


def test_verdicts(rows, attacks):
    table = text.table(rows, attacks)
    assert line_of(table, "forgetting")[2] == "-10.0 %, better"
    assert line_of(table, "mlk")[2] == "+10.0 %, worse"
    assert line_of(table, "sink")[2].endswith("equivalent")
    assert line_of(table, "sink")[3:5] == ["10.0 %", "50.0 %"]
    assert line_of(table, "sink")[5].endswith("equivalent")
    assert "Not measured" not in table
    names = [line.split("`")[1] for line in table.splitlines()[2:]]
    assert (names[0], names[-1]) == ("forgetting", "mlk")


def test_what_was_not_attacked_has_no_rise(rows, attacks):
    table = text.table(rows, attacks[attacks["name"] != "kde"])
    assert line_of(table, "sink")[5].endswith("equivalent")
    assert line_of(table, "kde")[3:] == ["-", "-", ""]


def test_what_was_attacked_with_some_of_the_seeds_only_has_no_rise_either(rows, attacks):
    left_out = (attacks["name"] == "kde") & (attacks["seed"] != 21)
    table = text.table(rows, attacks[~left_out])
    assert line_of(table, "kde")[3:] == ["-", "-", ""]
    assert line_of(table, "sink") == line_of(text.table(rows, attacks[attacks["name"] != "kde"]), "sink")


def test_what_is_not_measured_counts_in_the_correction(rows, attacks):
    """`forgetting` alone, with p = 0.01: decided as one of two comparisons, not as one of twelve."""
    alone = rows[rows["name"].isin([text.BASELINE, "forgetting"])].copy()
    own = (alone["name"] == "forgetting") & alone["seed"].isin(text.SEEDS)
    alone.loc[own, "test"] *= alone.loc[own, "seed"].map({21: 0.98, 22: 1.0, 23: 1.02})
    logs = np.log(
        alone[alone["seed"].isin(text.SEEDS) & (alone["test"] > 1)].pivot(index="seed", columns="name", values="test")
    )
    p = stats.ttest_1samp(logs["forgetting"] - logs[text.BASELINE], 0).pvalue
    assert 0.05 / 12 < p < 0.05 / 2
    table = text.table(alone, attacks)
    assert line_of(table, "forgetting")[2] == "-10.0 %, undecided"
    assert "Not measured yet: kde, rkde, mgk" in table
    assert "`kde`" not in table


def test_the_rise_is_relative_to_the_clean_perplexity_of_the_same_run():
    attacks = text.load_attacks(text.load())
    softmax = attacks[(attacks["name"] == "softmax") & (attacks["seed"] == 21)].set_index("level")["test"]
    source = pd.read_csv(text.HERE / "robustness.csv", comment="#").query("attention == 'softmax' and seed == 21")
    ppl = source.set_index("level")["ppl"]
    assert softmax[0.1] == pytest.approx(ppl[0.1] / ppl[0.0])
    assert 0.0 not in softmax.index


def test_attacked_runs_of_one_attention_are_told_apart_and_those_of_other_settings_left_out(tmp_path):
    names = {"softmax-s21-a": "softmax", "softmax-s21-b": text.CHECK}
    rows = pd.DataFrame([run(name, 2e-3, 21, 160.0, 150.0) | {"run": key} for key, name in names.items()])
    ppl = {"softmax-s21-a": (100, 110), "softmax-s21-b": (80, 100), "softmax-s21-c": (70, 140)}
    lines = [f"{key},softmax,21,{level},{ppl[key][level > 0]}" for level in (0, 0.1) for key in ppl]
    (tmp_path / "robustness.csv").write_text("\n".join(["run,attention,seed,level,ppl", *lines]))
    attacks = text.load_attacks(rows, tmp_path / "robustness.csv").set_index("name")["test"]
    assert attacks.to_dict() == {"softmax": 1.1, text.CHECK: 1.25}


def test_the_check_has_a_change_but_no_verdict(rows, attacks):
    checked = [run(text.CHECK, 2e-3, seed, 160.0, 120 * noise) for seed, noise in NOISE.items()]
    table = text.table(pd.concat([rows, pd.DataFrame(checked)]), attacks)
    assert line_of(table, text.CHECK)[2] == "-20.0 %"
    assert line_of(table, "forgetting")[2] == "-10.0 %, better"


def test_with_rotary_positions_each_is_compared_with_itself_and_with_softmax(rows, attacks):
    factors = {"softmax": 0.8, "gaussian": 0.8008, "fourier_disc": 0.7}
    rotated = [
        run(name + text.ROTARY, 2e-3, seed, 160.0, 150 * factor * noise * (1 + 1e-5 * len(name) * (seed - 22)))
        for name, factor in factors.items()
        for seed, noise in NOISE.items()
    ]
    table = text.rotary_table(pd.concat([rows, pd.DataFrame(rotated)]))
    assert line_of(table, "softmax")[1:] == ["120.0 ± 0.1", "-20.0 %", ""]
    assert line_of(table, "gaussian")[2:] == ["-19.9 %", "+0.1 %, worse, equivalent"]
    assert line_of(table, "fourier_disc")[2:] == ["-", "-12.5 %, better"]  # its rate in these rows is another one
    assert "Not measured" not in table
    assert "Not measured yet: fourier_disc;" in text.rotary_table(pd.concat([rows, pd.DataFrame(rotated[:6])]))

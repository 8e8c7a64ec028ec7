"""The verdicts of studies/regression: one for each comparison, whichever table shows it."""

import runpy
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.regression.analyse import all_table, compared, load, name_of, primary_table


def cells_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_of_all_attentions_has_the_verdicts_of_the_primary_one():
    rows = load()
    _, _, *lines = cells_of(primary_table(rows))
    primary = {(arm, float(rho)): verdict for arm, rho, _, _, verdict in lines}
    header, _, *lines = cells_of(all_table(rows))
    shown = {
        (line[0], float(head.removeprefix("rho "))): cell.split(maxsplit=3)[3]  # behind 1.598 ± 0.000
        for line in lines
        if line[1] == "sinc^4"
        for head, cell in zip(header[2:], line[2:], strict=True)
    }
    assert shown == primary


def test_what_has_one_seed_is_undecided_and_leaves_the_verdicts_of_others():
    changes = {"gaussian": 0.0, "a": 1.0, "b": 0.1, "c": 0.2}
    rows = pd.DataFrame(
        {"arm": "learned", "name": name, "seed": seed, "test": 1 + change + 1e-3 * seed * change}
        for name, change in changes.items()
        for seed in (range(1, 2) if name == "a" else range(1, 5))
    )
    verdicts = compared(rows, ["arm"])["verdict"].droplevel("arm")
    assert verdicts.to_dict() == {"a": "undecided", "b": "worse", "c": "worse"}


@pytest.mark.parametrize("arguments", [[], ["a"], ["E"]])
def test_commands_of_no_part_are_refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["commands", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("studies.regression.commands", run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


def made_up(**logs) -> pd.DataFrame:
    """Runs with seeds 1, 2, ... whose errors are the gaussian's times e^log."""
    base = [0.5, 0.7, 0.6, 0.9]
    return pd.DataFrame(
        [
            {"arm": "learned", "name": name, "seed": seed, "test": base[seed] * np.exp(log)}
            for name, values in {"gaussian": [0.0] * 4, **logs}.items()
            for seed, log in enumerate(values)
        ]
    )


def test_changes_are_paired_and_relative_with_the_tests_of_scipy_corrected_over_all():
    logs = {"a": [0.30, 0.32, 0.31, 0.33], "b": [-0.05, 0.06, 0.02, -0.04], "c": [0.001, -0.002, 0.0015, 0.002]}
    found = compared(made_up(**logs), ["arm"]).droplevel("arm")
    means = {name: np.expm1(np.mean(values)) for name, values in logs.items()}
    assert found["change"].to_dict() == pytest.approx(means)
    p = {name: stats.ttest_1samp(values, 0).pvalue for name, values in logs.items()}
    assert p["a"] < p["c"] < p["b"]
    corrected = {"a": 3 * p["a"], "c": max(2 * p["c"], 3 * p["a"]), "b": max(p["b"], 2 * p["c"])}
    assert found["p_different"].to_dict() == pytest.approx({name: min(1.0, value) for name, value in corrected.items()})
    assert found["verdict"].to_dict() == {"a": "worse", "b": "undecided", "c": "equivalent"}


def test_equivalent_is_within_two_per_cent_by_both_one_sided_tests():
    logs = [0.009, 0.011, 0.012, 0.008]
    ((_, _, p, verdict),) = compared(made_up(a=logs), ["arm"]).to_numpy()
    expected = stats.ttest_1samp(logs, np.log(1.02), alternative="less").pvalue
    assert p == pytest.approx(expected)
    assert verdict == "worse, equivalent"
    ((*_, outside),) = compared(made_up(a=[log + 0.02 for log in logs]), ["arm"]).to_numpy()
    assert outside == "worse"


def test_comparisons_that_are_not_measured_count_in_the_correction():
    rows = made_up(a=[0.3, 0.32, 0.2, 0.25])
    ((_, alone, *_),) = compared(rows, ["arm"]).to_numpy()
    ((_, among_five, *_),) = compared(rows, ["arm"], missing=4).to_numpy()
    assert among_five == pytest.approx(5 * alone)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"attention.name": "fourier", "attention.power": 4}, "sinc^4"),
        ({"attention.name": "fourier", "attention.power": 2}, "sinc^2"),
        ({"attention.name": "fourier", "attention.power": 1}, "sinc, signed"),
        ({"attention.name": "softmax", "model.normalise": True}, "softmax, unit norm"),
        ({"attention.name": "softmax", "model.normalise": False}, "softmax"),
        ({"attention.name": "gaussian_full"}, "full covariance"),
    ],
)
def test_names_in_tables_are_those_of_the_kernels(config, name):
    assert name_of(config) == name

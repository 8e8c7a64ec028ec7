"""The verdicts of studies/regression: one for each comparison, whichever table shows it."""

import runpy
import sys

import pandas as pd
import pytest

from studies.regression.analyse import all_table, compared, load, primary_table


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

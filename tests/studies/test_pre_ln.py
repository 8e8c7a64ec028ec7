"""Parts F and H of studies/rates on made-up runs: the rate is chosen by validation where all six runs are there."""

import pandas as pd
import pytest

from studies.rates import analyse

VALID = {1e-3: [190, 192, 194], 2e-3: [180, 196, 185]}


@pytest.fixture
def rows():
    found = [
        {"name": f"{name}, pre-LN", "lr": lr, "seed": seed, "valid": valid, "test": factor * (100 + seed), "share": 1.0}
        for name, factor in {"softmax": 1.0, "matched, eps 0": 0.97}.items()
        for lr, values in VALID.items()
        for seed, valid in [*enumerate(values, 1), *((seed, 0) for seed in analyse.PRE_LN)]
    ]
    return pd.DataFrame(found).sort_values(["name", "lr", "seed"])


def test_the_rate_of_the_lower_mean_over_the_three_seeds(rows):
    assert analyse.pre_ln_rates(rows) == {"matched, eps 0": 2e-3, "softmax": 2e-3}


def test_no_rate_before_all_runs_are_there(rows):
    last = (rows["name"] == "softmax, pre-LN") & (rows["seed"] == 3) & (rows["lr"] == 1e-3)
    assert analyse.pre_ln_rates(rows[~last]) == {"matched, eps 0": 2e-3}


def test_part_h_is_compared_on_its_own_seeds(rows):
    (line,) = [line for line in analyse.secondary_table(rows).splitlines() if line.startswith("| H ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "matched, eps 0, pre-LN, lr 0.002, to softmax, pre-LN, lr 0.002"
    assert cells[2:4] == ["6", "-3.0 % [-3.0, -3.0]"]

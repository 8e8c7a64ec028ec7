"""Pre-LN in studies/rates on made-up runs: the rate that validation chooses, and the tests of part H."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.rates import analyse

VALID = {1e-3: [190, 192, 194], 2e-3: [180, 196, 185]}


@pytest.fixture
def rows():
    found = [
        {"name": f"{name}, pre-LN", "lr": lr, "seed": seed, "valid": valid, "test": factor * (100 + seed)}
        for name, factor in {"softmax": 1.0, "matched, eps 0": 0.97}.items()
        for lr, values in VALID.items()
        for seed, valid in [*enumerate(values, 1), *((seed, 0) for seed in analyse.PRE_LN)]
    ]
    return pd.DataFrame(found).assign(share=1.0, least_share=1.0).sort_values(["name", "lr", "seed"])


def test_the_rate_of_the_lower_mean_over_the_three_seeds(rows):
    rates = dict(analyse.chosen(analyse.summary(rows, analyse.PRE_LN_NAMES)).index)
    assert rates == {"matched, eps 0, pre-LN": 2e-3, "softmax, pre-LN": 2e-3}


def test_part_h_is_compared_on_its_own_seeds(rows):
    (line,) = [line for line in analyse.secondary_table(rows).splitlines() if line.startswith("| H ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "matched, eps 0, pre-LN, to softmax, pre-LN, lr 0.002"
    assert cells[2:4] == ["6", "-3.0 % [-3.0, -3.0]"]


def test_part_h_has_the_tests_of_its_plan(rows):
    """Six differences of -0.01 and 0.002 more or less: t = (mean - bound) sqrt(6) / sd."""
    sign = rows["name"].str.startswith("matched") * (rows["seed"] % 2 - 0.5)
    rows["test"] = 100 * np.exp(-0.01 * rows["name"].str.startswith("matched") + 0.004 * sign)
    (line,) = [line for line in analyse.secondary_table(rows).splitlines() if line.startswith("| H ")]
    error = 0.002 * (6 / 5) ** 0.5 / 6**0.5
    different = 2 * stats.t(5).sf(0.01 / error)
    equivalent = stats.t(5).sf((np.log(1.02) - 0.01) / error)
    assert line.split("|")[5].strip() == f"{different:.2g}; equivalent within 2 %: {equivalent:.2g}"

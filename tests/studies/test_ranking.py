"""docs/attention.md: mechanisms in the order of what they reached, with p corrected over all of them."""

import re

import numpy as np
import pytest
from scipy.stats import dunnett

from fourierformer.results import collect
from fourierformer.results.measured import write_measured
from studies.zoo.analyse import rankings
from tests.helpers.synthetic_runs import write_run, write_vision_run

PPL = {  # of three seeds; what synthetic runs write as test, sliding is 0.9 of it
    "softmax": (60.0, 61.0, 62.5),
    "taylor": (70.0, 71.2, 72.4),
    "performer": (50.0, 51.1, 52.3),
}


def table(text: str) -> dict[str, list[str]]:
    lines = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, flags=re.M)
    return {name: cells.split(" | ") for name, cells in lines}


def test_perplexities_rise_and_p_is_simultaneous_over_all_comparisons(tmp_path):
    for attention, values in PPL.items():
        for seed, ppl in enumerate(values, 1):
            write_run(tmp_path / "runs", attention, seed, ppl)
    write_measured(collect(tmp_path / "runs"), tmp_path / "zoo_lm.csv")
    text = rankings(tmp_path)
    rows = table(text)
    assert list(rows) == ["performer", "softmax", "taylor"]
    assert rows["softmax"][2:5] == ["-", "-", "-"]
    logs = {name: np.log(values) for name, values in PPL.items()}
    test = dunnett(logs["taylor"], logs["performer"], control=logs["softmax"], random_state=np.random.default_rng(0))
    for name, word, p in (("taylor", "worse", test.pvalue[0]), ("performer", "better", test.pvalue[1])):
        shown = float(rows[name][3].removeprefix("< "))
        assert shown == pytest.approx(p, abs=5e-4)
        assert rows[name][4] == word
    assert "Dunnett" in text
    assert "Brown-Forsythe" in text


def test_accuracies_fall(tmp_path):
    for attention, top1 in (("softmax", 92.0), ("axial", 94.0), ("band", 90.0)):
        write_vision_run(tmp_path / "runs", attention, 1, top1)
    write_measured(collect(tmp_path / "runs"), tmp_path / "zoo_vit.csv")
    rows = table(rankings(tmp_path))
    assert list(rows) == ["axial", "softmax", "band"]
    assert {cells[4] for cells in rows.values()} == {"-"}  # one seed: no claim


def test_without_files_there_is_no_table(tmp_path):
    assert rankings(tmp_path) == ""

"""The table of image models under attack: intervals of ratios, and what too few seeds leave out."""

import math

import pytest
from scipy import stats

from fourierformer.files import write_csv
from studies.real_data.attacks import ATTACKED, attack_table

CLEAN = {"softmax": [60.0, 61.0, 62.0], "fourier": [47.0, 48.0, 48.5]}
KEPT = {"softmax": [0.97, 0.98, 0.975], "fourier": [0.55, 0.71, 0.48]}


@pytest.fixture
def table(tmp_path):
    def make(kept=KEPT) -> list[str]:
        rows = []
        for name, clean in CLEAN.items():
            for seed, share in enumerate(kept[name], 1):
                top1 = clean[seed - 1]
                run = {"run": f"{name}-{seed}", "attention": name, "seed": seed}
                rows.append(run | {"attack": "clean", "level": 0.0, "top1": top1})
                rows.append(run | {"attack": "fgm", "level": 1.0, "top1": top1 * share})
        write_csv(tmp_path / f"{ATTACKED}.csv", rows)
        return attack_table(tmp_path).splitlines()

    return make


def test_the_interval_is_that_of_the_ratio(table):
    (line,) = (line for line in table() if line.startswith("| FGM | `fourier`"))
    logs = [math.log(ours / theirs) for ours, theirs in zip(KEPT["fourier"], KEPT["softmax"], strict=True)]
    test = stats.ttest_1samp(logs, 0)
    low, high = (100 * math.expm1(end) for end in test.confidence_interval(0.95))
    change = 100 * math.expm1(sum(logs) / 3)
    assert f"| {change:+.1f} % ({low:+.1f} to {high:+.1f}) |" in line
    assert "undecided" in line


def test_an_attention_with_fewer_seeds_has_no_verdict(table):
    lines = table(KEPT | {"fourier": KEPT["fourier"][:2]})
    (line,) = (line for line in lines if line.startswith("| FGM | `fourier`"))
    assert line.endswith("(2 seeds) |  |  |")
    assert any(line.startswith("Not measured with all seeds: `fourier` under FGM") for line in lines)


def test_nothing_kept_is_no_number(table):
    (line,) = (line for line in table(KEPT | {"fourier": [0.5, 0.0, 0.4]}) if line.startswith("| FGM | `fourier`"))
    assert line.endswith("|  |  |")

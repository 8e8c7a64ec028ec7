"""The check of image models under attack: the accuracy kept, its test and what is missing."""

import math

import pandas as pd
import pytest
from scipy import stats

from studies.real_data.attacks import ATTACKED, attack_table, comparisons, kept, load

CLEAN = {"softmax": {1: 60.0, 2: 61.0, 3: 62.5}, "fourier": {1: 48.0, 2: 46.5, 3: 47.0}}
SHARES = {"softmax": {1: 0.98, 2: 0.97, 3: 0.975}, "fourier": {1: 0.882, 2: 0.8731, 3: 0.8775}}  # 0.9 of softmax's


def lines(attack: str, names=tuple(CLEAN), seeds=(1, 2, 3)) -> list[dict]:
    found = []
    for name in names:
        for seed in seeds:
            run = {"run": f"{name}-s{seed}", "attention": name, "seed": seed}
            clean, share = CLEAN[name][seed], SHARES[name][seed]
            found.append(run | {"attack": "clean", "level": 0.0, "top1": clean})
            found += [run | {"attack": attack, "level": level, "top1": clean * share**level} for level in (1.0, 2.0)]
    return found


def on_gpu(rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(rows).drop_duplicates().assign(machine="GPU")


def save(folder, gpu: list[dict], cpus: list[dict]) -> None:
    for ending, rows in (("", gpu), ("_cpu", cpus)):
        pd.DataFrame(rows).drop_duplicates().to_csv(folder / f"{ATTACKED}{ending}.csv", index=False)


def of_other_checkpoints(rows: list[dict], factor: float) -> list[dict]:
    """The same shares kept of another clean top-1."""
    return [row | {"top1": row["top1"] * factor} for row in rows]


def test_the_accuracy_kept_is_relative_to_the_clean_one_of_the_same_run():
    shares = kept(on_gpu(lines("fgm")))
    assert shares["GPU", "fgm", "fourier", 1.0].values == pytest.approx(SHARES["fourier"])
    assert shares["GPU", "fgm", "softmax", 2.0].values[2] == pytest.approx(0.97**2)


def test_a_difference_is_paired_over_seeds_and_corrected_for_the_six_of_the_plan():
    ((key, (difference, p)),) = comparisons(kept(on_gpu(lines("fgm")))).items()
    assert key == ("GPU", "fgm", "fourier")
    assert difference.mean == pytest.approx(math.log(0.9) * 2 / 3 + math.log(0.8731 / 0.97) / 3)
    assert p == pytest.approx(6 * difference.p)


def test_attentions_without_the_seeds_of_softmax_are_named_and_not_compared(tmp_path):
    rows = [*lines("fgm"), *lines("pgd", ["softmax"]), *lines("pgd", ["fourier"], [1, 2])]
    pd.DataFrame(rows).drop_duplicates().to_csv(tmp_path / f"{ATTACKED}.csv", index=False)
    table = attack_table(tmp_path)
    assert "| FGM | GPU | `fourier` | 47.2 % | 87.8 % ± 0.4 |" in table
    assert "keeps less" in table
    assert "`fourier` under PGD" in table.split("beside softmax: ")[1]
    assert "`fourier` under FGM" not in table.split("beside softmax: ")[1]


def test_runs_on_cpus_are_compared_with_softmax_on_cpus_only(tmp_path):
    """Runs have the same names on both machines; the clean top-1 is that of the machine."""
    save(tmp_path, [*lines("fgm"), *lines("pgd", ["softmax"])], of_other_checkpoints(lines("pgd", ["fourier"]), 0.5))
    table = attack_table(tmp_path)
    assert "| FGM | GPU | `fourier` | 47.2 % | 87.8 % ± 0.4 |" in table
    assert "\n| PGD | CPUs | `fourier` | 23.6 % | 87.8 % ± 0.4 | 77.0 % ± 0.8 |  |  |" in table
    assert "`fourier` under PGD" in table.split("beside softmax: ")[1]
    save(tmp_path, [*lines("fgm"), *lines("pgd", ["softmax"])], of_other_checkpoints(lines("pgd"), 0.5))
    table = attack_table(tmp_path)
    (line,) = (line for line in table.splitlines() if line.startswith("| PGD | CPUs | `fourier`"))
    assert line.endswith("keeps less |")
    assert "`fourier` under PGD" not in table.split("beside softmax: ")[1]


def test_what_the_gpu_has_tested_is_shown_again_without_a_second_p(tmp_path):
    """Six tests are planned: the one of the GPU counts, the CPUs' test another attack."""
    save(tmp_path, lines("fgm"), of_other_checkpoints([*lines("fgm"), *lines("pgd")], 0.5))
    found = comparisons(kept(load(tmp_path)))
    assert found["GPU", "fgm", "fourier"][1] == pytest.approx(6 * found["GPU", "fgm", "fourier"][0].p)
    assert found["CPUs", "pgd", "fourier"][1] is not None
    difference, p = found["CPUs", "fgm", "fourier"]
    assert difference.mean == pytest.approx(found["GPU", "fgm", "fourier"][0].mean)
    assert p is None
    (line,) = (line for line in attack_table(tmp_path).splitlines() if line.startswith("| FGM | CPUs | `fourier`"))
    assert line.endswith(") | - |")


def line_of(folder, shares: dict[int, float]) -> str:
    """The line of fourier under FGM, of which it keeps these shares."""
    rows = [
        row | {"top1": 47.0 * shares[row["seed"]]} if (row["attention"], row["level"]) == ("fourier", 1.0) else row
        for row in lines("fgm")
        if row["attention"] == "softmax" or row["seed"] in shares
    ]
    rows = [row | {"top1": 47.0} if (row["attention"], row["level"]) == ("fourier", 0.0) else row for row in rows]
    pd.DataFrame(rows).to_csv(folder / f"{ATTACKED}.csv", index=False)
    (line,) = (line for line in attack_table(folder).splitlines() if line.startswith("| FGM | GPU | `fourier`"))
    return line


def test_the_interval_is_that_of_the_ratio(tmp_path):
    kept_here = {1: 0.55, 2: 0.71, 3: 0.48}
    line = line_of(tmp_path, kept_here)
    logs = [math.log(kept_here[seed] / SHARES["softmax"][seed]) for seed in (1, 2, 3)]
    low, high = (100 * math.expm1(end) for end in stats.ttest_1samp(logs, 0).confidence_interval(0.95))
    assert f"| {100 * math.expm1(sum(logs) / 3):+.1f} % ({low:+.1f} to {high:+.1f}) |" in line


def test_fewer_seeds_and_nothing_kept_have_no_verdict(tmp_path):
    fewer = line_of(tmp_path, {1: 0.5, 2: 0.6})
    assert "| 55.0 % ± 7.1 (2 of 3 seeds) |" in fewer
    assert fewer.endswith("|  |  |")
    assert line_of(tmp_path, {1: 0.5, 2: 0.0, 3: 0.4}).endswith("|  |  |")


@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_softmax_with_fewer_seeds_than_planned_is_no_baseline(tmp_path, seeds):
    """One seed has no p, and two are fewer than the plan's three: both count as p = 1."""
    rows = [*lines("fgm", seeds=seeds), *lines("pgd")]
    shares = kept(on_gpu(rows))
    ((key, (difference, p)),) = comparisons(shares).items()
    assert key == ("GPU", "pgd", "fourier")
    assert p == pytest.approx(6 * difference.p)
    pd.DataFrame(rows).drop_duplicates().to_csv(tmp_path / f"{ATTACKED}.csv", index=False)
    missing = attack_table(tmp_path).split("beside softmax: ")[1]
    assert missing.startswith("`fourier` under FGM, ")


def test_the_level_of_the_comparison_is_the_published_one():
    """At 1/255 fourier keeps more than softmax, at 2/255 less: the first one counts."""
    rows = on_gpu(lines("fgm"))
    turned = rows.assign(top1=rows["top1"].where(rows["level"] != 1.0, 60 - rows["top1"] + rows["seed"]))
    shares = kept(turned)
    logs = [
        math.log(shares["GPU", "fgm", "fourier", 1.0].values[s] / shares["GPU", "fgm", "softmax", 1.0].values[s])
        for s in (1, 2, 3)
    ]
    ((_, (difference, p)),) = comparisons(shares).items()
    assert difference.mean == pytest.approx(sum(logs) / 3)
    assert difference.mean > 0
    assert p == pytest.approx(min(1.0, 6 * stats.ttest_1samp(logs, 0).pvalue))

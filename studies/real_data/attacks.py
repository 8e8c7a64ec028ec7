"""Check 6 of the plan: the accuracy that image models keep under FGM and PGD, beside softmax's."""

import math
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from fourierformer.results.comparison import Cell
from fourierformer.results.formats import DASH
from fourierformer.results.statistics import SIGNIFICANT, Difference, compare, corrected, p_text
from studies.real_data.hypotheses import HERE

RUNS, ATTACKED = "evidence_vit_attacked", "evidence_vit_robustness"
ON_CPUS = "_cpu"  # ends the names of the files of runs that were trained again, for what the first ones lack
BASELINE, COMPARED = "softmax", ("fourier", "fourier_matched", "gaussian")
NAMES = {"fgm": "FGM", "pgd": "PGD"}
SEEDS = 3  # of the plan
TESTED = 1.0  # in 255ths of the normalised images: the published level
Kept = dict[tuple[str, str, float], Cell]


def load(folder: Path = HERE) -> pd.DataFrame:
    """A row per run, attack and level: those of the runs on the GPU, and where these lack an attack those on CPUs."""
    rows = pd.read_csv(folder / f"{ATTACKED}.csv", comment="#")
    if not (path := folder / f"{ATTACKED}{ON_CPUS}.csv").is_file():
        return rows
    again = pd.read_csv(path, comment="#")
    again["run"] += ON_CPUS
    measured = set(zip(rows["attack"], rows["attention"], strict=True)) - {("clean", name) for name in COMPARED}
    lacking = [pair not in measured for pair in zip(again["attack"], again["attention"], strict=True)]
    return pd.concat([rows, again[lacking]], ignore_index=True)


def kept(rows: pd.DataFrame) -> Kept:
    """By attack, attention and level: top-1 under attack over clean top-1 of the same run, for each seed."""
    clean = rows[rows["level"] == 0].set_index("run")["top1"]
    attacked = rows[rows["level"] > 0].assign(kept=lambda found: found["top1"] / found["run"].map(clean))
    groups = attacked.groupby(["attack", "attention", "level"])
    return {key: Cell(dict(zip(group["seed"], group["kept"], strict=True))) for key, group in groups}


def on_cpus(rows: pd.DataFrame) -> set[tuple[str, str]]:
    """Attack and attention of the runs on CPUs, whose shares are not compared with those of softmax on the GPU."""
    again = rows[rows["run"].str.endswith(ON_CPUS)]
    return set(zip(again["attack"], again["attention"], strict=True))


def comparisons(
    shares: Kept, elsewhere: Collection[tuple[str, str]] = ()
) -> dict[tuple[str, str], tuple[Difference, float]]:
    """By attack and attention: the difference of the logarithms to softmax's at the tested level, and its p, corrected
    (Holm) over all of the plan; a comparison that is not measured with all seeds, or on other machines than softmax
    (`elsewhere`), or with which nothing is kept, counts as p = 1."""
    planned = [(attack, name) for attack in NAMES for name in COMPARED]
    found = {}
    for attack, name in planned:
        cells = [shares.get((attack, each, TESTED)) for each in (name, BASELINE)]
        if (
            (attack, name) in elsewhere
            or not all(cells)
            or not all(value > 0 for cell in cells for value in cell.values.values())
        ):
            continue
        if cells[0].values.keys() == cells[1].values.keys() and cells[0].n == SEEDS:
            found[attack, name] = compare(*(_logs(cell) for cell in cells))
    missing = [Difference(p=1.0)] * (len(planned) - len(found))
    p_values = corrected([*found.values(), *missing])[: len(found)]
    return {key: (difference, p) for (key, difference), p in zip(found.items(), p_values, strict=True)}


def attack_table(folder: Path = HERE) -> str:
    rows = load(folder)
    shares, clean = kept(rows), rows[rows["level"] == 0].set_index("run")["top1"]
    elsewhere = on_cpus(rows)
    tested = comparisons(shares, elsewhere)
    levels = sorted({level for *_, level in shares})
    heads = ["attack", "attention", "clean top-1", *(f"{level:g}/255" for level in levels)]
    heads += [f"{TESTED:g}/255, to softmax", "corrected p"]
    lines = [f"| {' | '.join(heads)} |", "|---|---" + "|---:" * (len(heads) - 2) + "|"]
    for attack, name in ((attack, name) for attack in NAMES for name in (BASELINE, *COMPARED)):
        if (attack, name, TESTED) not in shares:
            continue
        cells = [shares.get((attack, name, level)) for level in levels]
        runs = rows[(rows["attack"] == attack) & (rows["attention"] == name)]["run"].unique()
        where = " (CPUs)" if (attack, name) in elsewhere else ""
        line = [NAMES[attack], f"`{name}`{where}", f"{clean[runs].mean():.1f} %", *map(_percent, cells)]
        lines.append(f"| {' | '.join([*line, *_verdict(tested.get((attack, name)))])} |")
    missing = [
        f"`{name}` under {NAMES[attack]}" for attack in NAMES for name in COMPARED if (attack, name) not in tested
    ]
    if missing:
        reason = "Not measured with all seeds on the machine of softmax"
        lines += ["", f"{reason}: {', '.join(missing)}; in Holm's correction with p = 1."]
    return "\n".join(lines)


def _verdict(tested: tuple[Difference, float] | None) -> list[str]:
    if tested is None:
        return ["", ""]
    difference, p = tested
    decided = "undecided" if p >= SIGNIFICANT else "keeps more" if difference.mean > 0 else "keeps less"
    ends = (difference.mean + sign * difference.half_width for sign in (0, -1, 1))
    change, low, high = (f"{100 * math.expm1(end):+.1f}" for end in ends)
    return [f"{change} % ({low} to {high})", f"{p_text(p)}, {decided}"]


def _percent(cell: Cell | None) -> str:
    if cell is None:
        return DASH
    spread = "" if cell.sd is None else f" ± {100 * cell.sd:.1f}"
    return f"{100 * cell.mean:.1f} %{spread}" + ("" if cell.n == SEEDS else f" ({cell.n} of {SEEDS} seeds)")


def _logs(cell: Cell) -> Cell:
    return Cell({seed: math.log(value) for seed, value in cell.values.items()})

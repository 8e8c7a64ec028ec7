"""Check 6 of the plan: the accuracy that image models keep under FGM and PGD, beside softmax's."""

import math
from pathlib import Path

import pandas as pd

from fourierformer.results.comparison import Cell
from fourierformer.results.formats import DASH
from fourierformer.results.statistics import SIGNIFICANT, Difference, compare, corrected, p_text
from studies.real_data.hypotheses import HERE

RUNS, ATTACKED = "evidence_vit_attacked", "evidence_vit_robustness"
MACHINES = {"GPU": "", "CPUs": "_cpu"}  # the endings of their files' names; a test is on the first that can decide it
BASELINE, COMPARED = "softmax", ("fourier", "fourier_matched", "gaussian")
NAMES = {"fgm": "FGM", "pgd": "PGD"}
SEEDS = {1, 2, 3}  # of the plan
TESTED = 1.0  # in 255ths of the normalised images: the published level
Kept = dict[tuple[str, str, str, float], Cell]
Tested = dict[tuple[str, str, str], tuple[Difference, float | None]]


def load(folder: Path = HERE) -> pd.DataFrame:
    """A row per machine, run, attack and level."""
    files = {machine: folder / f"{ATTACKED}{ending}.csv" for machine, ending in MACHINES.items()}
    found = [pd.read_csv(path, comment="#").assign(machine=name) for name, path in files.items() if path.is_file()]
    return pd.concat(found, ignore_index=True)


def kept(rows: pd.DataFrame) -> Kept:
    """By machine, attack, attention and level: top-1 under attack over clean top-1 of the same run, for each seed."""
    clean = _clean(rows)
    attacked = rows[rows["level"] > 0]
    top1 = clean.loc[pd.MultiIndex.from_frame(attacked[["machine", "run"]])].to_numpy()
    groups = attacked.assign(kept=attacked["top1"] / top1).groupby(["machine", "attack", "attention", "level"])
    return {key: Cell(dict(zip(group["seed"], group["kept"], strict=True))) for key, group in groups}


def comparisons(shares: Kept) -> Tested:
    """By machine, attack and attention: the difference of the logarithms to softmax's on that machine, at the tested
    level, where both have all seeds and keep something, and its p, corrected (Holm) over the six of the plan. A test
    of the plan that no machine allows counts as p = 1; what the GPU tests has no second p from the CPUs."""
    found = {}
    for machine in MACHINES:
        for attack, name in _planned():
            cells = [shares.get((machine, attack, each, TESTED)) for each in (name, BASELINE)]
            if all(cell and cell.values.keys() == SEEDS and min(cell.values.values()) > 0 for cell in cells):
                found[machine, attack, name] = compare(*(_logs(cell) for cell in cells))
    first: dict[tuple[str, str], tuple[str, str, str]] = {}
    for key in found:
        first.setdefault(key[1:], key)
    missing = [Difference(p=1.0)] * (len(_planned()) - len(first))
    p_values = corrected([*(found[key] for key in first.values()), *missing])
    decided = dict(zip(first.values(), p_values, strict=False))
    return {key: (difference, decided.get(key)) for key, difference in found.items()}


def attack_table(folder: Path = HERE) -> str:
    rows = load(folder)
    shares, clean = kept(rows), _clean(rows)
    tested = comparisons(shares)
    levels = sorted({level for *_, level in shares})
    heads = ["attack", "machine", "attention", "clean top-1", *(f"{level:g}/255" for level in levels)]
    heads += [f"{TESTED:g}/255, to softmax", "corrected p"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---" + "|---:" * (len(heads) - 3) + "|"]
    keys = [(machine, attack, name) for attack in NAMES for machine in MACHINES for name in (BASELINE, *COMPARED)]
    for machine, attack, name in (key for key in keys if (*key, TESTED) in shares):
        cells = [shares.get((machine, attack, name, level)) for level in levels]
        here = rows[(rows["machine"] == machine) & (rows["attack"] == attack) & (rows["attention"] == name)]
        line = [NAMES[attack], machine, f"`{name}`", f"{clean[machine][here['run'].unique()].mean():.1f} %"]
        line += [*map(_percent, cells), *_verdict(tested.get((machine, attack, name)))]
        lines.append(f"| {' | '.join(line)} |")
    missing = [pair for pair in _planned() if pair not in {key[1:] for key in tested}]
    if missing:
        names = ", ".join(f"`{name}` under {NAMES[attack]}" for attack, name in missing)
        lines += ["", f"Not measured with all seeds beside softmax: {names}; in Holm's correction with p = 1."]
    return "\n".join(lines)


def _planned() -> list[tuple[str, str]]:
    return [(attack, name) for attack in NAMES for name in COMPARED]


def _clean(rows: pd.DataFrame) -> pd.Series:
    return rows[rows["level"] == 0].set_index(["machine", "run"])["top1"]


def _verdict(tested: tuple[Difference, float | None] | None) -> list[str]:
    if tested is None:
        return ["", ""]
    difference, p = tested
    ends = (difference.mean + sign * difference.half_width for sign in (0, -1, 1))
    change, low, high = (f"{100 * math.expm1(end):+.1f}" for end in ends)
    interval = f"{change} % ({low} to {high})"
    if p is None:
        return [interval, DASH]
    decided = "undecided" if p >= SIGNIFICANT else "keeps more" if difference.mean > 0 else "keeps less"
    return [interval, f"{p_text(p)}, {decided}"]


def _percent(cell: Cell | None) -> str:
    if cell is None:
        return DASH
    spread = "" if cell.sd is None else f" ± {100 * cell.sd:.1f}"
    return f"{100 * cell.mean:.1f} %{spread}" + ("" if cell.n == len(SEEDS) else f" ({cell.n} of {len(SEEDS)} seeds)")


def _logs(cell: Cell) -> Cell:
    return Cell({seed: math.log(value) for seed, value in cell.values.items()})

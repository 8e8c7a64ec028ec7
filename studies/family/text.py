"""Parts W and D: language models on WikiText-2, under swapped words, and with rotary positions; analyse.py writes the
tables into README.md."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from studies.rates.analyse import NAMES as CONTROLS_OF_RATES
from studies.rates.analyse import load as load_rates
from studies.regression.analyse import compared

HERE = Path(__file__).resolve().parent
START = "experiment=evidence_lm experiment_name=family_text data.root=/data/wikitext-2"
CONTROLS = {CONTROLS_OF_RATES[key]: key[0] for key in [("softmax", ""), ("gaussian", ""), ("fourier_matched", "1e-06")]}
MEMBERS = ["kde", "rkde", "mgk", "mlk", "elliptical", "sink", "fourier_disc", "parallax", "differential", "forgetting"]
RATES, RATE_OF_CONTROLS = ("1e-3", "2e-3"), 2e-3  # studies/rates chose the latter
CHOICE, SEEDS = 1, range(21, 24)
BASELINE, LEVEL_OF_ATTACK = "softmax", 0.025
ROTARY = ", rotary"  # behind the name
CHECK = BASELINE + ROTARY  # of `forgetting`; not in Holm's correction of part W
ROTATED = ["gaussian", "fourier_disc"]  # part D, compared with CHECK


def load() -> pd.DataFrame:
    """One line per run: run, name, lr, seed, valid and test (perplexities); the controls are runs of studies/rates."""
    rows = pd.read_csv(HERE / "rows.csv", comment="#").query("experiment == 'family_text'")
    config = rows["config"].map(json.loads)
    name = rows["attention"] + config.map(lambda values: ROTARY if "model.position" in values else "")
    found = pd.DataFrame({"run": rows["run"], "name": name, "seed": rows["seed"], "valid": rows["best.valid_ppl"]})
    found["lr"] = config.map(lambda values: values["optim.lr"])
    found["test"] = rows["results.test.overlapping.ppl"]
    controls = load_rates()
    controls = controls[controls["name"].isin(CONTROLS) & (controls["lr"] == RATE_OF_CONTROLS)]
    controls = controls[controls["seed"].isin(SEEDS)].assign(name=controls["name"].map(CONTROLS))
    return pd.concat([found, controls[[*found.columns]]], ignore_index=True).sort_values(["name", "lr", "seed"])


def load_attacks(rows: pd.DataFrame, path: Path = HERE / "robustness.csv") -> pd.DataFrame:
    """The robustness script's rows of the runs that `load` gives, with their names there (several configurations have
    the same attention), and the perplexity under attack over the clean one as `test`."""
    attacked = pd.read_csv(path, comment="#")
    clean = attacked[attacked["level"] == 0].set_index("run")["ppl"]
    attacked["test"] = attacked["ppl"] / attacked["run"].map(clean)
    attacked = attacked[(attacked["level"] > 0) & attacked["seed"].isin(SEEDS)]
    return attacked[["run", "level", "seed", "test"]].merge(rows[["run", "name"]], on="run")


def chosen_rates(rows: pd.DataFrame) -> pd.Series:
    """By name: the rate with the lower validation perplexity, where both were run."""
    tried = rows[(rows["seed"] == CHOICE) & rows["name"].isin(MEMBERS)].set_index(["name", "lr"])["valid"].unstack()
    return tried.dropna().idxmin(axis=1)


def commands(rows: pd.DataFrame) -> list[str]:
    lines = [f"python train_lm.py -m {START} optim.lr={','.join(RATES)} seed={CHOICE} attention={','.join(MEMBERS)}"]
    seeds = f"'seed=range({SEEDS.start},{SEEDS.stop})'"
    for rate, names in chosen_rates(rows).groupby(chosen_rates(rows)):
        lines.append(f"python train_lm.py -m {START} optim.lr={rate:g} attention={','.join(names.index)} {seeds}")
    rotary = f"attention={','.join([BASELINE, *ROTATED])} model.position=rotary"
    lines.append(f"python train_lm.py -m {START} optim.lr={RATE_OF_CONTROLS:g} {rotary} {seeds}")
    runs = "runs/family_text/*-s2[123]-* runs/rates/*-s2[123]-*"
    return [*lines, f"python scripts/robustness.py {runs} --protocol segment"]


def choice_table(rows: pd.DataFrame) -> str:
    tried = rows[(rows["seed"] == CHOICE) & rows["name"].isin(MEMBERS)]
    lines = ["| attention | " + " | ".join(f"lr {float(rate):g}" for rate in RATES) + " | chosen |"]
    lines.append("|---|---:|---:|---:|")
    rates = chosen_rates(rows)
    valid = tried.set_index(["name", "lr"])["valid"]
    for name in sorted(rates.index, key=lambda name: valid[name].min()):
        cells = [f"{valid[name, float(rate)]:.1f}" for rate in RATES]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {rates[name]:g} |")
    return "\n".join(lines)


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs of the fresh seeds at the chosen rate, of attentions of which all seeds are there."""
    rates = {**dict.fromkeys([*CONTROLS.values(), CHECK], RATE_OF_CONTROLS), **chosen_rates(rows)}
    runs = rows[rows["seed"].isin(SEEDS) & (rows["lr"] == rows["name"].map(rates))]
    return runs[runs.groupby("name")["seed"].transform("size") == len(SEEDS)]


def table(rows: pd.DataFrame, attacks: pd.DataFrame) -> str:
    """Perplexity and its rise under attack, each minus softmax: change, Holm's correction, verdict."""
    runs = measured(rows)
    attacks = attacks[attacks.groupby(["name", "level"])["seed"].transform("size") == len(SEEDS)]  # as in `measured`
    attacked = attacks[(attacks["level"] == LEVEL_OF_ATTACK) & attacks["name"].isin(runs["name"])]
    levels = sorted(attacks["level"].unique())
    heads = [f"{100 * level:g} %" for level in levels]
    lines = ["| attention | test perplexity | to softmax | rise: " + " | ".join(heads) + " | to softmax |"]
    lines.append("|---|---:|---|" + "---:|" * len(levels) + "---|")
    cells = [_changes(each) for each in (runs, attacked)]
    for name, own in sorted(runs.groupby("name"), key=lambda group: group[1]["test"].mean()):
        rises = attacks[attacks["name"] == name].groupby("level")["test"].mean()
        text = [f"{100 * (rises[level] - 1):.1f} %" if level in rises else "-" for level in levels]
        line = [f"`{name}`", f"{own['test'].mean():.1f} ± {own['test'].std():.1f}", cells[0].get(name, ""), *text]
        lines.append(f"| {' | '.join([*line, cells[1].get(name, '')])} |")
    missing = [name for name in MEMBERS if name not in set(runs["name"])]
    return "\n".join([*lines, *_not_measured(missing)])


def rotary_table(rows: pd.DataFrame) -> str:
    """Part D: perplexity with rotary positions, its change by them, and beside softmax with Holm's correction."""
    rows = rows[rows["seed"].isin(SEEDS) & (rows["lr"] == RATE_OF_CONTROLS)]
    rows = rows[rows.groupby("name")["seed"].transform("size") == len(SEEDS)]
    logs = np.log(rows.pivot(index="seed", columns="name", values="test"))
    runs = rows[rows["name"].isin([name + ROTARY for name in [BASELINE, *ROTATED]])].assign(measure="")
    missing = [name for name in ROTATED if name + ROTARY not in logs]
    found = compared(runs, ["measure"], CHECK, len(missing)).droplevel("measure")
    lines = ["| attention | test perplexity | to its sinusoidal positions | to softmax |", "|---|---:|---:|---|"]
    for name in (name for name in [BASELINE, *ROTATED] if name not in missing):
        own = rows.loc[rows["name"] == name + ROTARY, "test"]
        gain = f"{100 * np.expm1((logs[name + ROTARY] - logs[name]).mean()):+.1f} %" if name in logs else "-"
        other = found.loc[name + ROTARY] if name != BASELINE else None
        verdict = "" if other is None else f"{100 * other['change']:+.1f} %, {other['verdict']}"
        lines.append(f"| `{name}` | {own.mean():.1f} ± {own.std():.1f} | {gain} | {verdict} |")
    return "\n".join([*lines, *_not_measured(missing)])


def _not_measured(names: list[str]) -> list[str]:
    return ["", f"Not measured yet: {', '.join(names)}; in Holm's correction with p = 1."] if names else []


def _changes(runs: pd.DataFrame) -> dict[str, str]:
    """By name: change to softmax, and the verdict, by Holm's correction over all of the plan."""
    logs = np.log(runs.pivot(index="seed", columns="name", values="test"))
    texts = {
        name: f"{100 * np.expm1((logs[name] - logs[BASELINE]).mean()):+.1f} %" for name in logs.drop(columns=BASELINE)
    }
    corrected = runs[runs["name"] != CHECK].assign(measure="")
    missing = len({*CONTROLS.values(), *MEMBERS} - set(corrected["name"]))
    found = compared(corrected, ["measure"], BASELINE, missing)["verdict"].droplevel("measure")
    return texts | {name: f"{texts[name]}, {verdict}" for name, verdict in found.items()}

"""Rows of the study -> tables in README.md, figure. --commands: those of the measurement; with choice: of the rates."""

import json
import sys
from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import yaml

from fourierformer.provenance import REPOSITORY
from fourierformer.results.documents import write_parts
from studies.family import text
from studies.figures import save_figure
from studies.recall.analyse import RENAMED, verdicts
from studies.regression.analyse import compared

HERE = Path(__file__).resolve().parent
CONTROLS = ("softmax", "gaussian", "fourier_matched")
RECALL = "experiment=recall experiment_name=family_recall data.pairs=32 data.length=64 data.queries=null"
REGRESSION = "experiment=regression experiment_name=family_regression data.rho=0.9"
ARMS = ("identity", "learned")
CHOICE = {"family_recall": 1, "family_regression": 0}  # seed of the choice of the rate
SEEDS = {"family_recall": range(11, 16), "family_regression": range(1, 4)}
SOLVED = 95.0  # per cent
PUBLISHED_AS = {"rkde": "rkde_huber"}
MARKS = {"verified": "", "derived": " (derived)", "recalled": " (recalled)"}


def members() -> list[str]:
    """Controls and members, in the order of the sweep."""
    sweep = yaml.safe_load((REPOSITORY / "configs" / "sweep" / "family.yaml").read_text())
    return sweep["hydra"]["sweeper"]["params"]["attention"].split(",")


def estimators() -> list[str]:
    """Those that regression accepts: no projections of their own, cross-attention."""
    refused = {"parallax", "mgk", "mlk", "forgetting", "stick_breaking", "differential"}
    return [name for name in members() if name not in refused]


def load() -> pd.DataFrame:
    """One line per run: experiment, attention, arm, lr, seed, accuracy, area, steps_to_95, valid, test, ratio."""
    rows = pd.read_csv(HERE / "rows.csv", comment="#").rename(columns=RENAMED)
    config = rows["config"].map(json.loads)
    rows["lr"] = config.map(lambda values: values["optim.lr"])
    rows["arm"] = config.map(lambda values: values.get("model.projections", ""))
    rows["name"], rows["valid"] = rows["attention"], rows.get("best.valid_mse")
    rows["test"], rows["ratio"] = rows.get("results.test.queries.mse"), rows.get("results.test.queries.ratio")
    return rows.sort_values(["experiment", "attention", "lr", "seed"])


def chosen_rates(rows: pd.DataFrame, experiment: str) -> pd.Series:
    """By attention and arm: the rate with the largest area, or the smallest error, on valid."""
    tried = rows[(rows["experiment"] == experiment) & (rows["seed"] == CHOICE[experiment])]
    key, ascending = ("area", False) if experiment == "family_recall" else ("valid", True)
    best = tried.sort_values(key, ascending=ascending).groupby(["attention", "arm"]).head(1)
    return best.set_index(["attention", "arm"])["lr"]


def choice() -> list[str]:
    arms = f"model.projections={','.join(ARMS)}"
    return [
        f"python train_lm.py -m {RECALL} optim.lr=5e-3,1e-2,2e-2 seed=1 attention={','.join(members())}",
        f"python train_lm.py -m {REGRESSION} optim.lr=1e-2,2e-2,5e-2 seed=0 {arms} attention={','.join(estimators())}",
    ]


def commands(rows: pd.DataFrame) -> list[str]:
    lines = []
    for experiment, start in (("family_recall", RECALL), ("family_regression", REGRESSION)):
        seeds = f"'seed=range({SEEDS[experiment].start},{SEEDS[experiment].stop})'"
        rates = chosen_rates(rows, experiment).reset_index()
        for (arm, rate), group in rates.groupby(["arm", "lr"]):
            projections = [f"model.projections={arm}"] if arm else []
            names = f"attention={','.join(group['attention'])}"
            lines.append(" ".join(["python train_lm.py -m", start, *projections, f"optim.lr={rate:g}", names, seeds]))
    return lines


def measured(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Runs of the fresh seeds, where all seeds are there."""
    runs = rows[(rows["experiment"] == experiment) & rows["seed"].isin(SEEDS[experiment])]
    return runs[runs.groupby(["attention", "arm"])["seed"].transform("size") == len(SEEDS[experiment])]


def recall_table(rows: pd.DataFrame) -> str:
    runs, rates = measured(rows, "family_recall"), chosen_rates(rows, "family_recall")
    accuracy = verdicts(runs, "accuracy")
    solved = runs.groupby("attention")["accuracy"].min() >= SOLVED
    area = verdicts(runs[runs["attention"].map(solved)], "area")
    lines = ["| attention | rate | accuracy | to softmax | steps to 95 % | area | to softmax |"]
    lines.append("|---|---:|---:|---|---:|---:|---|")
    groups = dict(list(runs.groupby("attention")))
    for name in sorted(groups, key=lambda name: -groups[name]["area"].mean()):
        own = groups[name]
        steps = f"{own['steps_to_95'].median():.0f}" if own["steps_to_95"].notna().all() else "-"
        cells = [f"`{name}`", f"{rates[name, '']:g}", _spread(own["accuracy"]), accuracy["verdict"].get(name, "")]
        cells += [steps, _spread(own["area"]), area["verdict"].get(name, "")]
        lines.append(f"| {' | '.join(cells)} |")
    decided = (accuracy["verdict"] != "undecided").mean()
    lines += ["", f"Decided: {100 * decided:.0f} % of the {len(accuracy)} comparisons of accuracy with softmax."]
    return "\n".join(lines)


def overview_table(rows: pd.DataFrame) -> str:
    """Each member's cost, the numbers of papers, and the two measures of this study."""
    from fourierformer.attention import mechanism

    area = measured(rows, "family_recall").groupby("attention")["area"].mean()
    error = measured(rows, "family_regression").query("arm == 'learned'").groupby("attention")["ratio"].mean()
    papers = pd.read_csv(REPOSITORY / "results" / "paper.csv").query("protocol != 'best'")
    papers = papers[papers["settings"].isna() | (papers["attention"] == "fourier")]
    lines = ["| attention | cost | published: WikiText-103, test | published: ImageNet, top-1 | recall: area | error |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for name in [*members(), "fourier", "elliptical"]:  # the paper's start; one that needs two layers
        of_papers = papers[papers["attention"] == PUBLISHED_AS.get(name, name)]
        words = of_papers.query("experiment == 'wt103_small' and split == 'test' and metric == 'ppl'")
        images = of_papers.query("experiment == 'imagenet_deit_tiny' and metric == 'top1'")
        cells = [f"`{name}`", mechanism(name).cost, _published(words), _published(images)]
        cells += [f"{area[name]:.1f}" if name in area else "-", f"{error[name]:.3f}" if name in error else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _published(found: pd.DataFrame) -> str:
    """The first number, which the paper itself or the nearest to it states."""
    marks = [" (log)" if "training log" in row.source else MARKS[row.status] for row in found.itertuples()]
    return "".join(f"{value:.2f}{mark}" for value, mark in zip(found["value"][:1], marks, strict=False)) or "-"


def _spread(values: pd.Series) -> str:
    return f"{values.mean():.1f} ± {values.std():.1f}"


def regression_table(rows: pd.DataFrame) -> str:
    """Errors divided by the error of the GP posterior, with the verdict against the Gaussian."""
    runs = measured(rows, "family_regression").assign(rho=0.9)
    found = compared(runs, ["arm", "rho"])
    ratios = runs.groupby(["attention", "arm"])["ratio"].agg(["mean", "std"])
    lines = ["| attention | identity | to gaussian | learned | to gaussian |", "|---|---:|---|---:|---|"]
    for name in sorted(set(runs["attention"]), key=lambda name: ratios["mean"].get((name, "identity"), float("inf"))):
        cells = [f"`{name}`"]
        for arm in ARMS:
            there = (name, arm) in ratios.index
            cells.append("{:.3f} ± {:.3f}".format(*ratios.loc[name, arm]) if there else "-")
            change = found.loc[(arm, 0.9, name)] if (arm, 0.9, name) in found.index else None
            cells.append("" if change is None else f"{100 * change['change']:+.1f} %, {change['verdict']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: pd.DataFrame) -> None:
    """Area in recall and error in regression, a mark per seed; controls filled black."""
    matplotlib.rcParams |= {"svg.hashsalt": "family", "font.size": 9}
    panels = [("family_recall", "", "area", "mean accuracy during training, %", "recall, 32 pairs")]
    panels += [
        ("family_regression", arm, "ratio", "error / error of the GP posterior", f"regression, {arm}") for arm in ARMS
    ]
    panels = [panel for panel in panels if (measured(rows, panel[0])["arm"] == panel[1]).any()]
    if not panels:
        return
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 5.6), squeeze=False, layout="constrained")
    for axis, (experiment, arm, key, label, title) in zip(axes[0], panels, strict=True):
        runs = measured(rows, experiment)
        runs = runs[runs["arm"] == arm]
        order = runs.groupby("attention")[key].mean().sort_values(ascending=key == "area").index
        for place, name in enumerate(order):
            values = runs[runs["attention"] == name][key]
            colour = "#222222" if name in CONTROLS else "#0072b2"
            axis.plot(values, [place] * len(values), "o", markersize=4, color=colour)
        axis.set_yticks(range(len(order)), order, fontsize=8)
        axis.set(xlabel=label, title=title)
        axis.grid(axis="x", linewidth=0.3)
    save_figure(figure, HERE / "figure")


def parts() -> dict[str, str]:
    if not (HERE / "rows.csv").is_file():
        return {}
    rows = load()
    tables = {"family_recall": ("recall", recall_table), "family_regression": ("regression", regression_table)}
    found = {part: write(rows) for name, (part, write) in tables.items() if len(measured(rows, name))}
    of_text = text.load()
    found |= {"choice": text.choice_table(of_text), "text": text.table(of_text, text.load_attacks(of_text))}
    found["rotary"] = text.rotary_table(of_text)
    return found | {"overview": overview_table(rows)}


if __name__ == "__main__":
    if "--commands" in sys.argv:
        print("\n".join(choice() if "choice" in sys.argv else [*commands(load()), *text.commands(text.load())]))
    elif not (HERE / "rows.csv").is_file():
        print("no rows yet: README.md has the commands")
    else:
        write_parts(HERE / "README.md", parts())
        draw(load())

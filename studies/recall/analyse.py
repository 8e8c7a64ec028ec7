"""Rows of the study -> tables in README.md, figures; with --commands the commands of the measurement."""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from scipy import stats

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from fourierformer.results.documents import write_parts
from fourierformer.results.statistics import holm
from studies.figures import save_figure

HERE = Path(__file__).resolve().parent
SIZES = {"recall_32": "data.pairs=32 data.length=64 data.queries=null", "recall_128": ""}
CHOICE = 1  # seed of the choice of the rate
SEEDS = {"recall_32": range(11, 16), "recall_128": range(11, 16), "recall_pairs": range(11, 14)}
FEWEST = 3  # seeds, where time did not suffice for all
PAIRS = {
    pairs: f"data.pairs={pairs} data.length={pairs + min(pairs, 32)} data.queries={min(pairs, 32)}"
    for pairs in (8, 16, 64)
}
MARGIN, LEVEL, SOLVED = 1.0, 0.05, 95.0  # points, level of the tests, per cent
RENAMED = {
    "results.test.1x.recall": "accuracy",
    "results.valid.curve.area": "area",
    "results.valid.curve.steps_to_95": "steps_to_95",
    "results.valid.curve.state": "state",
    "results.test.1x.pairs": "pairs",
}
NAMED = 5.0  # per cent; marks below are not named in the figure
CURVES = {
    "softmax": "#222222",
    "gaussian": "#0072b2",
    "gaussian_full": "#56b4e9",
    "fourier_matched": "#d55e00",
    "fourier": "#cc79a7",
    "taylor": "#009e73",
    "linear_elu": "#999999",
}
BY_PAIRS = {  # in this order: states that grow with the text, bounded ones from large to small, a window
    "softmax": "#222222",
    "gaussian": "#0072b2",
    "fourier_matched": "#d55e00",
    "taylor": "#009e73",
    "dpfp": "#56b4e9",
    "fast_weight": "#e69f00",
    "linear_relu": "#8c564b",
    "performer": "#cc79a7",
    "linear_elu": "#999999",
    "band": "#bcbd22",
}


def load() -> pd.DataFrame:
    """One line per run: experiment, attention, lr, seed, accuracy, area, steps_to_95, state, evaluations."""
    rows = pd.read_csv(HERE / "rows.csv", comment="#").rename(columns=RENAMED)
    rows["lr"] = rows["config"].map(lambda text: json.loads(text)["optim.lr"])
    return rows.sort_values(["experiment", "attention", "lr", "seed"])


def chosen_rates(rows: pd.DataFrame, size: str) -> pd.Series:
    """The rate of each attention: that with the largest area on valid."""
    tried = rows[(rows["experiment"] == size) & (rows["seed"] == CHOICE)]
    best = tried.sort_values("area").groupby("attention").tail(1)
    return best.set_index("attention")["lr"].sort_index()


def commands(rows: pd.DataFrame) -> list[str]:
    """Those of the measurement, one for each size and rate, and of the numbers of pairs between, at the rates of 32."""
    rates = {size: chosen_rates(rows, size) for size in SIZES}
    between = rates["recall_32"][rates["recall_32"].index.isin(BY_PAIRS)]
    asked = [
        *((size, text, rates[size]) for size, text in SIZES.items()),
        *(("recall_pairs", text, between) for text in PAIRS.values()),
    ]
    return [line for name, overrides, of_name in asked for line in _commands(name, overrides, of_name)]


def _commands(name: str, overrides: str, rates: pd.Series) -> list[str]:
    start = " ".join(filter(None, ["python train_lm.py -m experiment=recall", f"experiment_name={name}", overrides]))
    seeds = f"'seed=range({SEEDS[name].start},{SEEDS[name].stop})'"
    return [
        f"{start} optim.lr={rate:g} attention={','.join(attentions.index)} {seeds}"
        for rate, attentions in rates.groupby(rates)
    ]


def measured(rows: pd.DataFrame, size: str) -> pd.DataFrame:
    """Runs of the measurement: those of the fresh seeds, all at the chosen rate, where enough seeds are there."""
    runs = rows[(rows["experiment"] == size) & rows["seed"].isin(SEEDS[size])]
    return runs[runs.groupby("attention")["seed"].transform("size") >= FEWEST]


def verdicts(runs: pd.DataFrame, key: str) -> pd.DataFrame:
    """Each attention minus softmax: mean, difference, p of difference and equivalence by Holm, verdict."""
    values = {name: of_name[key].to_numpy() for name, of_name in runs.groupby("attention")}
    softmax = values.pop("softmax")
    found = pd.DataFrame(
        {name: (own.mean() - softmax.mean(), *_tests(own, softmax)) for name, own in values.items()},
        index=["difference", "p_different", "p_equivalent"],
    ).T
    for column in ("p_different", "p_equivalent"):
        found[column] = holm(found[column])
    found["verdict"] = [_verdict(row) for row in found.itertuples()]
    return found


def _tests(own: np.ndarray, softmax: np.ndarray) -> tuple[float, float]:
    """p of Welch's t-test and of two one-sided ones; without any variance the difference decides."""
    difference = own.mean() - softmax.mean()
    if not own.std() and not softmax.std():
        return float(difference == 0), float(abs(difference) >= MARGIN)

    def welch(shift: float, alternative: str) -> float:
        # ttest_ind computes the same, but warns where one side does not vary
        sides = (own.mean() + shift, own.std(ddof=1), own.size, softmax.mean(), softmax.std(ddof=1), softmax.size)
        return stats.ttest_ind_from_stats(*sides, equal_var=False, alternative=alternative).pvalue

    return welch(0, "two-sided"), max(welch(MARGIN, "greater"), welch(-MARGIN, "less"))


def _verdict(row) -> str:
    equivalent = "equivalent" if row.p_equivalent < LEVEL else ""
    different = ("better" if row.difference > 0 else "worse") if row.p_different < LEVEL else ""
    return ", ".join(filter(None, [different, equivalent])) or "undecided"


def table(rows: pd.DataFrame, size: str) -> str:
    runs, rates = measured(rows, size), chosen_rates(rows, size)
    if "softmax" not in set(runs["attention"]):
        return f"`{size}`: not measured yet."
    groups = runs.groupby("attention")
    summary = groups.agg(
        n=("seed", "size"),
        mean=("accuracy", "mean"),
        sd=("accuracy", "std"),
        area=("area", "mean"),
        area_sd=("area", "std"),
        state=("state", "first"),
        steps=("steps_to_95", lambda steps: steps.median() if steps.notna().all() else np.nan),
    )
    accuracy = verdicts(runs, "accuracy")
    solved = groups["accuracy"].min() >= SOLVED
    area = verdicts(runs[runs["attention"].map(solved)], "area") if solved["softmax"] else accuracy.iloc[:0]
    lines = ["| attention | state | rate | seeds | accuracy | to softmax | steps to 95 % | area | to softmax |"]
    lines.append("|---|---:|---:|---:|---:|---|---:|---:|---|")
    for row in summary.sort_values(["mean", "area"], ascending=False).itertuples():
        name = row.Index
        cells = [
            *(f"`{name}`", f"{row.state:,.0f}", f"{rates[name]:g}", str(row.n), f"{row.mean:.1f} ± {row.sd:.1f}"),
            *(accuracy["verdict"].get(name, ""), "-" if np.isnan(row.steps) else f"{row.steps:.0f}"),
            *(f"{row.area:.1f} ± {row.area_sd:.1f}", area["verdict"].get(name, "")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    decided = (accuracy["verdict"] != "undecided").mean()
    missing = ", ".join(f"`{name}`" for name in rates.index if name not in accuracy.index and name != "softmax")
    lines += ["", *([f"Not measured yet: {missing}.", ""] if missing else [])]
    lines += [f"Decided: {100 * decided:.0f} % of the {len(accuracy)} comparisons of accuracy with softmax."]
    return "\n".join(lines)


def panels(rows: pd.DataFrame, height: float):
    """A figure with an axis for each size that is measured: (figure, {size: axis})."""
    sizes = [size for size in SIZES if len(measured(rows, size))]
    shape = {"figsize": (1 + 4.8 * len(sizes), height), "sharey": True, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(1, len(sizes), **shape)
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"{size.removeprefix('recall_')} pairs")
    return figure, dict(zip(sizes, axes[0], strict=True))


def draw_states(rows: pd.DataFrame) -> None:
    figure, axes = panels(rows, 4.6)
    for size, axis in axes.items():
        groups = measured(rows, size).groupby("attention")
        values = groups["accuracy"].agg(["mean", "min", "max"]).assign(state=groups["state"].first().clip(lower=1))
        errors = [values["mean"] - values["min"], values["max"] - values["mean"]]
        style = {"fmt": "o", "markersize": 4, "elinewidth": 0.8, "color": "#0072b2", "alpha": 0.8}
        axis.errorbar(values["state"], values["mean"], yerr=errors, **style)
        if "softmax" in values.index:
            axis.axvline(values.loc["softmax", "state"], color="#222222", linewidth=0.8, linestyle=":")
        label(axis, values[values["mean"] >= NAMED].sort_values("mean", ascending=False))
        unnamed = (values["mean"] < NAMED).sum()
        axis.text(1, 8, f"{unnamed} attentions below {NAMED:.0f} %", fontsize=7, color="#555555")
        axis.set(xscale="log", ylim=(-4, 104), xlabel="numbers kept between tokens", ylabel="accuracy on test, %")
    save_figure(figure, HERE / "states")


def label(axis, values: pd.DataFrame) -> None:
    """Names beside marks; a group of near marks has the name of its best and a count."""
    named = pd.DataFrame(columns=values.columns)
    for name, row in values.iterrows():
        if not _near(named, row).any():
            count = _near(values, row).sum()
            text = name if count == 1 else f"{name} + {count - 1}"
            place = {"xytext": (-5, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
            axis.annotate(text, (row["state"], row["mean"]), fontsize=7, **place)
            named.loc[name] = row


def _near(values: pd.DataFrame, row: pd.Series) -> pd.Series:
    return (np.log(values["state"].astype(float) / row["state"]).abs() < 0.8) & (
        (values["mean"] - row["mean"]).abs() < 3.5
    )


def draw_curves(rows: pd.DataFrame) -> None:
    figure, axes = panels(rows, 3.6)
    for size, axis in axes.items():
        runs = measured(rows, size)
        for name, colour in CURVES.items():
            evaluations = [json.loads(text) for text in runs[runs["attention"] == name]["evaluations"]]
            if not evaluations:
                continue
            steps = [point["step"] for point in evaluations[0]]
            values = np.array([[point["valid_recall"] for point in points] for points in evaluations])
            axis.plot(steps, np.median(values, 0), color=colour, label=name)
            axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        axis.set(xlabel="step", ylabel="accuracy on valid, %")
        axis.legend(frameon=False, fontsize=8)
    save_figure(figure, HERE / "curves")


def draw_pairs(rows: pd.DataFrame) -> None:
    """Accuracy against the number of pairs: mean and range over seeds."""
    between = rows[(rows["experiment"] == "recall_pairs") & rows["seed"].isin(SEEDS["recall_pairs"])]
    if between.empty:
        return
    runs = pd.concat([between, *(measured(rows, size) for size in SIZES)])
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, colour in BY_PAIRS.items():
        values = runs[runs["attention"] == name].groupby("pairs")["accuracy"].agg(["mean", "min", "max"])
        axis.plot(values.index, values["mean"], "o-", color=colour, markersize=3, label=name)
        axis.fill_between(values.index, values["min"], values["max"], color=colour, alpha=0.15, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="pairs", ylabel="accuracy on test, %", xticks=[8, 16, 32, 64, 128])
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, HERE / "pairs")


def parts() -> dict[str, str]:
    if not (HERE / "rows.csv").is_file():
        return {}
    rows = load()
    return {size: table(rows, size) for size in SIZES}


if __name__ == "__main__":
    if "--commands" in sys.argv:
        print("\n".join(commands(load())))
        sys.exit()
    matplotlib.rcParams |= {"svg.hashsalt": "recall", "font.size": 9}
    write_parts(HERE / "README.md", parts())
    draw_states(load())
    draw_curves(load())
    draw_pairs(load())

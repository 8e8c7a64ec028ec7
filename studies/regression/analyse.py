"""Rows of the study -> tables in README.md, figure."""

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
LEVEL, MARGIN = 0.05, np.log(1.02)
BASELINE, PRIMARY = "gaussian", "sinc^4"
COLOURS = {
    "softmax": "#222222",
    "softmax, unit norm": "#777777",
    "gaussian": "#0072b2",
    "full covariance": "#56b4e9",
    "sinc^4": "#d55e00",
    "sinc^2": "#e69f00",
    "sinc, signed": "#cc79a7",
    "sinc^4 per coordinate": "#009e73",
}


def load() -> pd.DataFrame:
    """One line per run: experiment, name, arm, lr, seed, the keys that vary, valid and test (squared errors), ratio."""
    rows = pd.read_csv(HERE / "rows.csv", comment="#")
    config = rows["config"].map(json.loads)
    rows["name"] = config.map(name_of)
    for column, key in (
        *(("arm", "model.projections"), ("lr", "optim.lr"), ("rho", "data.rho"), ("covariance", "data.covariance")),
        *(("dimension", "data.dimension"), ("context", "data.context"), ("smooth_in", "data.smooth_in")),
        ("layers", "model.layers"),
    ):
        rows[column] = config.map(lambda values, key=key: values[key])
    rows["valid"] = rows["best.valid_mse"]
    rows["test"], rows["ratio"] = rows["results.test.queries.mse"], rows["results.test.queries.ratio"]
    return rows


def name_of(config: dict) -> str:
    attention = config["attention.name"]
    if attention == "fourier":
        return {4: "sinc^4", 2: "sinc^2", 1: "sinc, signed"}[config["attention.power"]]
    if attention == "softmax":
        return "softmax, unit norm" if config["model.normalise"] else "softmax"
    return {"gaussian_full": "full covariance", "fourier_vector": "sinc^4 per coordinate"}.get(attention, attention)


def compared(rows: pd.DataFrame, by: list[str], baseline: str = BASELINE, missing: int = 0) -> pd.DataFrame:
    """Each name minus the baseline, paired over seeds, in each cell: change, p by Holm over all, verdict.

    `missing`: comparisons of the plan that are not measured. They count as p = 1, and no verdict is lost when they are.
    """
    found = []
    for cell, runs in rows.groupby(by):
        errors = np.log(runs.pivot(index="seed", columns="name", values="test"))
        for name in errors.columns.drop(baseline):
            differences = (errors[name] - errors[baseline]).dropna()
            found.append((*cell, name, np.expm1(differences.mean()), *_tests(differences)))
    table = pd.DataFrame(found, columns=[*by, "name", "change", "p_different", "p_equivalent"])
    for column in ("p_different", "p_equivalent"):
        table[column] = holm([*table[column], *[1.0] * missing])[: len(table)]
    table["verdict"] = [_verdict(row) for row in table.itertuples()]
    return table.set_index([*by, "name"])


def _tests(differences: pd.Series) -> tuple[float, float]:
    if len(differences) < 2:  # no test; NaN would be in the way of the correction
        return 1.0, 1.0
    different = stats.ttest_1samp(differences, 0).pvalue
    above = stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, MARGIN, alternative="less").pvalue
    return different, max(above, below)


def _verdict(row) -> str:
    equivalent = "equivalent" if row.p_equivalent < LEVEL else ""
    different = ("worse" if row.change > 0 else "better") if row.p_different < LEVEL else ""
    return ", ".join(filter(None, [different, equivalent])) or "undecided"


def primary_table(rows: pd.DataFrame) -> str:
    return _changes(primary(rows), ["arm", "rho"])


def primary(rows: pd.DataFrame) -> pd.DataFrame:
    part = rows[(rows["experiment"] == "regression_a") & rows["name"].isin([BASELINE, PRIMARY])]
    return compared(part, ["arm", "rho"])


def _changes(table: pd.DataFrame, by: list[str]) -> str:
    lines = [f"| {' | '.join(by)} | attention | error to gaussian's | verdict |", "|---" * (len(by) + 3) + "|"]
    for *cell, name in table.index:
        row = table.loc[(*cell, name)]
        lines.append(f"| {' | '.join(map(str, cell))} | {name} | {100 * row['change']:+.1f} % | {row['verdict']} |")
    return "\n".join(lines)


def all_table(rows: pd.DataFrame) -> str:
    """Part A: the error over the GP posterior's, with the verdict against the Gaussian: of sinc^4 the primary one, of
    the others corrected over these, as the plan states."""
    part = rows[rows["experiment"] == "regression_a"]
    others = compared(part[part["name"] != PRIMARY], ["arm", "rho"])
    verdicts = pd.concat([primary(rows), others])["verdict"]
    means = part.groupby(["arm", "name", "rho"])["ratio"].agg(["mean", "std"])
    rhos = sorted(part["rho"].unique())
    lines = ["| projections | attention | " + " | ".join(f"rho {rho:g}" for rho in rhos) + " |"]
    lines.append("|---|---|" + "---|" * len(rhos))
    for arm in ("identity", "learned"):
        for name in [name for name in COLOURS if (arm, name) in means.index.droplevel(2)]:
            cells = []
            for rho in rhos:
                mean, sd = means.loc[(arm, name, rho)]
                cells.append(f"{mean:.3f} ± {sd:.3f} {verdicts.get((arm, rho, name), '')}".strip())
            lines.append(f"| {arm} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def baselines_table() -> str:
    """Classical estimators, as multiples of the posterior's error."""
    table = pd.read_csv(HERE / "baselines.csv", comment="#").pivot(index="baseline", columns="rho", values="ratio")
    lines = ["| estimator | " + " | ".join(f"rho {rho:g}" for rho in table.columns) + " |"]
    lines.append("|---|" + "---:|" * len(table.columns))
    for name, row in table.sort_values(table.columns[0]).iterrows():
        lines.append(f"| {name} | {' | '.join(f'{ratio:.3f}' for ratio in row)} |")
    return "\n".join(lines)


def longer_table(rows: pd.DataFrame) -> str:
    """Part D: rho 0.99 with learned projections, four times the steps, beside part A."""
    lines = ["| attention | 400 steps | 1,600 steps | to gaussian |", "|---|---:|---:|---|"]
    part = rows[(rows["arm"] == "learned") & (rows["rho"] == 0.99)]
    longer = part[part["experiment"] == "regression_d"]
    verdicts = compared(longer, ["arm", "rho"])["verdict"]
    for name in longer["name"].unique():
        ratios = (
            part[(part["experiment"] == e) & (part["name"] == name)]["ratio"] for e in ("regression_a", "regression_d")
        )
        means = [f"{ratio.mean():.3f} ± {ratio.std():.3f}" for ratio in ratios]
        lines.append(f"| {name} | {' | '.join(means)} | {verdicts.get(('learned', 0.99, name), '')} |")
    return "\n".join(lines)


def variations_table(rows: pd.DataFrame) -> str:
    part = rows[rows["experiment"].isin(["regression_b", "regression_c"])]
    by = ["arm", "dimension", "context", "covariance", "smooth_in", "layers"]
    return _changes(compared(part, by), by)


def draw(rows: pd.DataFrame) -> None:
    matplotlib.rcParams |= {"svg.hashsalt": "regression", "font.size": 9}
    part = rows[rows["experiment"] == "regression_a"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for axis, (arm, runs) in zip(axes, part.groupby("arm"), strict=True):
        for name, colour in COLOURS.items():
            if name == "sinc, signed":  # far above all others: see the table
                continue
            means = runs[runs["name"] == name].groupby("rho")["ratio"].mean()
            axis.plot(range(len(means)), means, marker="o", markersize=3, color=colour, label=name)
        axis.set_xticks(range(part["rho"].nunique()), [f"{rho:g}" for rho in sorted(part["rho"].unique())])
        axis.set(xlabel="correlation of the features", title=f"projections: {arm}", ylim=(1.45, 3.05))
    axes[0].set_ylabel("error / error of the GP posterior")
    axes[1].legend(frameon=False, fontsize=8)
    save_figure(figure, HERE / "figure")


def parts() -> dict[str, str]:
    if not (HERE / "rows.csv").is_file():
        return {}
    rows = load()
    tables = {"primary": (primary_table, "regression_a"), "all": (all_table, "regression_a")}
    tables |= {"variations": (variations_table, "regression_b"), "longer": (longer_table, "regression_d")}
    done = set(rows["experiment"])
    found = {name: write(rows) for name, (write, needed) in tables.items() if needed in done}
    return found | {"baselines": baselines_table()}


if __name__ == "__main__":
    if not (HERE / "rows.csv").is_file():
        print("no rows yet: README.md has the commands")
        sys.exit()
    write_parts(HERE / "README.md", parts())
    draw(load())

"""Rows of the study and of the first plan -> tables in README.md, figure.svg, figure.png."""

import json
from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from fourierformer.results.documents import write_parts
from studies.figures import save_figure

HERE = Path(__file__).resolve().parent
REAL_DATA = HERE.parent / "real_data"  # runs of the first plan in the same setting
ROWS = [HERE / "rows.csv", REAL_DATA / "evidence_lm.csv", REAL_DATA / "evidence_lm_checks.csv"]
NAMES = {
    ("softmax", ""): "softmax",
    ("gaussian", ""): "gaussian",
    ("fourier_matched", "1e-06"): "matched",
    ("fourier_matched", "0.0"): "matched, eps 0",
    ("none", ""): "none",
    ("fourier", "1e-06"): "fourier (R = 2)",
}
COLOURS = {
    "softmax": "#222222",
    "gaussian": "#0072b2",
    "matched": "#d55e00",
    "matched, eps 0": "#d55e00",
    "none": "#777777",
    "fourier (R = 2)": "#cc79a7",
}
VALID, TEST = "results.valid.segment.ppl", "results.test.overlapping.ppl"
SETTING = {"model.layers": 4, "model.heads": 8, "model.norm": "post", "trainer.steps": 4000}
MATCHED_START = ("matched", 1.0)  # radius at the start, multiplier of R's learning rate


def load() -> pd.DataFrame:
    """One line per run of the study's setting: name, lr, seed, valid, test, share (of the layer that attends least)."""
    frames = [pd.read_csv(path, comment="#") for path in ROWS if path.is_file()]
    rows = pd.concat(frames, ignore_index=True)
    config = rows["config"].map(json.loads)
    rows["lr"] = config.map(lambda c: c["optim.lr"])
    rows["eps"] = config.map(lambda c: str(float(c["attention.eps"])) if "attention.eps" in c else "")
    rows["name"] = [NAMES.get(key) for key in zip(rows["attention"], rows["eps"], strict=True)]
    rows["standard"] = config.map(
        lambda c: (
            all(c.get(key, value) == value for key, value in SETTING.items())
            and (
                c["attention.name"] != "fourier_matched"
                or (c["attention.radius"], c["attention.radius_lr_multiplier"]) == MATCHED_START
            )
        )
    )
    rows["share"] = rows.apply(least_share, axis=1)
    rows = rows[rows["standard"] & rows["name"].notna()]
    # seed 1 of softmax at 1e-3 was repeated on another processor; the repetition does not count
    rows = rows.drop_duplicates(["name", "lr", "seed"], keep="first")
    return rows.rename(columns={VALID: "valid", TEST: "test"}).sort_values(["name", "lr", "seed"])


def least_share(row: pd.Series) -> float:
    """Attended share of the layer that attends least, on the test split; 1 without eps."""
    if row["attention"] == "none":
        return 0.0
    if not row["eps"] or float(row["eps"]) == 0:
        return 1.0
    layers = json.loads(row["head_layers"])["test"] if isinstance(row.get("head_layers"), str) else None
    return min(layer["attended_share"] for layer in layers) if layers else float("nan")


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation and number of seeds of each attention at each rate, seeds 1 to 5."""
    first = rows[rows["seed"] <= 5]
    return first.groupby(["name", "lr"]).agg(
        n=("seed", "size"), valid=("valid", "mean"), test=("test", "mean"), sd=("test", "std"), share=("share", "mean")
    )


def parts() -> dict[str, str]:
    return {"rates": table(summary(load()))}


def table(by_rate: pd.DataFrame) -> str:
    rates = sorted(by_rate.index.get_level_values("lr").unique())
    lines = ["| attention | " + " | ".join(f"lr {rate:g}" for rate in rates) + " | chosen by validation |"]
    lines.append("|---|" + "---:|" * len(rates) + "---:|")
    for name in dict.fromkeys(NAMES.values()):
        if name not in by_rate.index:
            continue
        of_name = by_rate.loc[name]
        cells = [cell(of_name.loc[rate]) if rate in of_name.index else "-" for rate in rates]
        lines.append(f"| {name} | {' | '.join(cells)} | {of_name['valid'].idxmin():g} |")
    return "\n".join(lines)


def cell(values: pd.Series) -> str:
    spread = "" if pd.isna(values["sd"]) else f" ± {values['sd']:.1f}"
    return f"{values['test']:.1f}{spread} ({values['n']:.0f})"


def draw(rows: pd.DataFrame, by_rate: pd.DataFrame) -> None:
    matplotlib.rcParams |= {"svg.hashsalt": "rates", "font.size": 9}
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6, 6), sharex=True, height_ratios=[3, 1.2], layout="constrained"
    )
    for name, of_name in by_rate.groupby(level="name"):
        means = of_name.droplevel("name")
        style = {"color": COLOURS[name], "linestyle": "--" if name in ("none", "matched, eps 0") else "-"}
        top.plot(means.index, means["test"], label=name, **style)
        bottom.plot(means.index, means["share"], marker=".", **style)
        runs = rows[(rows["name"] == name) & (rows["seed"] <= 5)]
        top.scatter(runs["lr"], runs["test"], s=10, color=COLOURS[name])
        best = means["valid"].idxmin()
        top.scatter([best], [means.loc[best, "test"]], s=120, facecolors="none", edgecolors=COLOURS[name])
    top.set(xscale="log", yscale="log", ylabel="test perplexity")
    top.yaxis.set_major_formatter("{x:.0f}")
    top.yaxis.set_minor_formatter("{x:.0f}")
    top.legend(frameon=False, fontsize=8)
    bottom.set(xscale="log", ylim=(-0.05, 1.05), xlabel="learning rate", ylabel="least attended share")
    ticks = sorted(by_rate.index.get_level_values("lr").unique())
    bottom.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    bottom.minorticks_off()
    save_figure(figure, HERE / "figure")


if __name__ == "__main__":
    rows = load()
    by_rate = summary(rows)
    write_parts(HERE / "README.md", parts())
    draw(rows, by_rate)

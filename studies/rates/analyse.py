"""Rows of the study and of the first plan -> tables in README.md, figure.svg, figure.png."""

import json
from collections.abc import Iterable
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
OF_FIRST_PLAN = {  # measured at one rate
    ("fourier", "0.0"): "fourier (R = 2), eps 0",
    ("fourier_first_coordinate", "1e-06"): "fourier_first_coordinate",
    ("fourier_vector", "1e-06"): "fourier_vector",
    ("fourier_head", "1e-06"): "fourier_head",
}
ALL_NAMES = NAMES | OF_FIRST_PLAN
COLOURS = {
    "softmax": "#222222",
    "gaussian": "#0072b2",
    "matched": "#d55e00",
    "matched, eps 0": "#d55e00",
    "none": "#777777",
    "fourier (R = 2)": "#cc79a7",
}
VALID, TEST = "results.valid.segment.ppl", "results.test.overlapping.ppl"
SETTING = {"model.layers": 4, "trainer.steps": 4000}
VARIANTS = {  # of matched: radius at the start, eps, multiplier of R's learning rate
    ("1", "1e-06", 1.0): "R = 1",
    ("1", "0.0", 1.0): "R = 1, eps 0",
    ("matched", "1e-06", 10.0): "R learns at 10 times the rate",
    ("matched", "1e-06", 0.0): "R frozen",
}
# seeds that choose the rate, of the primary comparison, and of its replication
CHOICE, FRESH, REPLICATION = range(1, 6), range(11, 16), range(16, 26)
PRE_LN = range(31, 37)  # parts H and I
COMPARED = ["softmax", "gaussian", "matched", "matched, eps 0"]  # in both
PRE_LN_NAMES = ["softmax, pre-LN", "matched, eps 0, pre-LN"]
LEVEL, MARGIN, PRE_LN_MARGIN = 0.05, np.log(1.01), np.log(1.02)


def load() -> pd.DataFrame:
    """One line per run of the study's setting: name, lr, seed, valid, test; attended share, mean and least of the
    layers."""
    frames = [pd.read_csv(path, comment="#") for path in ROWS if path.is_file()]
    rows = pd.concat(frames, ignore_index=True)
    config = rows["config"].map(json.loads)
    rows["lr"] = config.map(lambda c: c["optim.lr"])
    rows["eps"] = config.map(lambda c: str(float(c["attention.eps"])) if "attention.eps" in c else "")
    rows["name"] = config.map(name_of)
    shares = rows.apply(attended_shares, axis=1)
    rows["share"], rows["least_share"] = shares.map(np.mean), shares.map(min)
    rows = rows[rows["name"].notna()]
    # seed 1 of softmax at 1e-3 was repeated on another processor; the repetition does not count
    rows = rows.drop_duplicates(["name", "lr", "seed"], keep="first")
    return rows.rename(columns={VALID: "valid", TEST: "test"}).sort_values(["name", "lr", "seed"])


def name_of(config: dict) -> str | None:
    """The row's name in the tables; None for runs of another setting, which the first plan's files hold, too."""
    if any(config[key] != value for key, value in SETTING.items()):
        return None
    name = name_of_attention(config)
    heads = "" if config["model.heads"] == 8 else f", {config['model.heads']} heads"
    norm = ", pre-LN" if config.get("model.norm") == "pre" else ""  # left out of the config where it is neutral
    return name and name + heads + norm


def name_of_attention(config: dict) -> str | None:
    attention = config["attention.name"]
    eps = str(float(config["attention.eps"])) if "attention.eps" in config else ""
    if attention == "fourier_matched":
        variant = str(config["attention.radius"]), eps, float(config["attention.radius_lr_multiplier"])
        if variant[::2] != ("matched", 1.0):
            return VARIANTS.get(variant)
    return ALL_NAMES.get((attention, eps))


def attended_shares(row: pd.Series) -> list[float]:
    """Of each layer on the test split, NaN where it was not measured; 1 without eps."""
    if row["attention"] == "none":
        return [0.0]
    if not row["eps"] or float(row["eps"]) == 0:
        return [1.0]
    layers = json.loads(row["head_layers"])["test"] if isinstance(row.get("head_layers"), str) else None
    return [layer["attended_share"] for layer in layers] if layers else [float("nan")]


def summary(rows: pd.DataFrame, names: Iterable[str] = ALL_NAMES.values()) -> pd.DataFrame:
    """Mean, standard deviation and number of seeds of each attention at each rate, on the seeds that choose it."""
    first = rows[rows["seed"].isin(CHOICE) & rows["name"].isin(names)]
    numbers = first.groupby(["name", "lr"])[["valid", "test", "share", "least_share"]]
    return numbers.mean().assign(n=numbers.size(), sd=numbers.std()["test"])


def chosen(by_rate: pd.DataFrame) -> pd.DataFrame:
    """The rate of each attention whose validation perplexity is lowest; the lowest test perplexity first."""
    return by_rate.loc[by_rate["valid"].groupby(level="name").idxmin()].sort_values("test")


def parts() -> dict[str, str]:
    rows = load()
    found = {"primary": primary_table(rows, FRESH), "rates": table(summary(rows)), "secondary": secondary_table(rows)}
    found["pre_ln"] = table(summary(rows, PRE_LN_NAMES))
    return found | {"replication": replication(rows)}


def replication(rows: pd.DataFrame) -> str:
    """The comparisons whose runs are all there, and how many runs are."""
    repeated = rows[rows["seed"].isin(REPLICATION)].groupby("name")["seed"].nunique()
    complete = [name for name in COMPARED if repeated.get(name, 0) == len(REPLICATION)]
    if complete == COMPARED:
        return primary_table(rows, REPLICATION)
    runs, all_runs = repeated.reindex(COMPARED, fill_value=0).sum(), len(COMPARED) * len(REPLICATION)
    text = f"{runs} of {all_runs} runs are measured. A comparison is judged when its {2 * len(REPLICATION)} runs are"
    if len(complete) < 2 or complete[0] != "softmax":
        return text + "."
    names = complete[1:]
    return f"{text}, with {len(COMPARED) - 1} times its p:\n\n{primary_table(rows, REPLICATION, names)}"


def differences(rows: pd.DataFrame, one: tuple[str, float], other: tuple[str, float], seeds: range) -> pd.Series:
    """log(test perplexity of `one`) - log(that of `other`), each a (name, rate), by the seeds that both have."""
    by_name = rows[rows["seed"].isin(seeds)].set_index(["name", "lr", "seed"])["test"]
    if any(each not in by_name.index.droplevel("seed") for each in (one, other)):
        return pd.Series(dtype=float)
    return (np.log(by_name[one]) - np.log(by_name[other])).dropna()


def change_text(logs: pd.Series) -> str:
    """'+2.7 % [+1.2, +4.3]': the mean change and its 95 % interval."""
    if len(logs) < 2:
        return "".join(f"{100 * np.expm1(value):+.1f} %" for value in logs)
    interval = stats.ttest_1samp(logs, 0).confidence_interval(1 - LEVEL)
    mean, low, high = 100 * np.expm1([logs.mean(), *interval])
    return f"{mean:+.1f} % [{low:+.1f}, {high:+.1f}]"


def primary_table(rows: pd.DataFrame, seeds: range, names: list[str] = COMPARED[1:]) -> str:
    """Part B or its replication: each minus softmax at the chosen rate, tests of difference and of equivalence
    within 1 %, Holm's correction; for some of the comparisons only, the largest that Holm can make of p."""
    lines = ["| attention | test perplexity | to softmax [95 %] | p, different | p, equivalent | verdict |"]
    lines.append("|---|---:|---|---:|---:|---|")
    rate = dict(chosen(summary(rows)).index)
    fresh = rows[rows["seed"].isin(seeds)].groupby("name")["test"]
    lines.append(f"| softmax | {fresh.mean()['softmax']:.1f} ± {fresh.std()['softmax']:.1f} | | | | |")
    correct = holm if names == COMPARED[1:] else bonferroni
    logs = [differences(rows, (name, rate[name]), ("softmax", rate["softmax"]), seeds) for name in names]
    different = correct(stats.ttest_1samp(each, 0).pvalue for each in logs)
    equivalent = correct(p_equivalent(each, MARGIN) for each in logs)
    for name, each, p, p_within in zip(names, logs, different, equivalent, strict=True):
        verdict = ("worse" if each.mean() > 0 else "better") if p < LEVEL else ""
        verdict = ", ".join(filter(None, [verdict, "equivalent within 1 %" if p_within < LEVEL else ""]))
        if not verdict:
            t = stats.t(len(each) - 1)
            smallest = np.expm1((t.ppf(1 - LEVEL / 2) + t.ppf(0.8)) * each.sem())
            verdict = f"undecided: finds {100 * smallest:.1f} %"
        mean = f"{fresh.mean()[name]:.1f} ± {fresh.std()[name]:.1f}"
        lines.append(f"| {name} | {mean} | {change_text(each)} | {p:.2g} | {p_within:.2g} | {verdict} |")
    return "\n".join(lines)


def bonferroni(p: Iterable[float]) -> list[float]:
    """Correction for all the primary comparisons."""
    return [min(1.0, (len(COMPARED) - 1) * each) for each in p]


def p_equivalent(logs: pd.Series, margin: float) -> float:
    """Of two one-sided t-tests against a mean outside of +- margin, the larger p."""
    return max(
        stats.ttest_1samp(logs, -margin, alternative="greater").pvalue,
        stats.ttest_1samp(logs, margin, alternative="less").pvalue,
    )


def secondary_table(rows: pd.DataFrame) -> str:
    """Changes of test perplexity, paired over seeds, p not corrected; of part H also that of its margin."""
    lines = ["| part | comparison | seeds | change [95 %] | p |", "|---|---|---:|---|---:|"]
    compared = [("A", "matched, eps 0", "matched", rate, CHOICE) for rate in (1e-3, 2e-3, 4e-3)]
    compared += [("B", "matched, eps 0", "matched", 2e-3, FRESH)]
    compared += [("C", "none", name, 2e-3, CHOICE) for name in ("softmax", "fourier (R = 2)")]
    compared += [("D", name, "matched", 2e-3, CHOICE) for name in VARIANTS.values()]
    best = "matched, eps 0"  # the better `matched` of part B
    compared += [("E", f"{best}, {heads} heads", f"softmax, {heads} heads", 2e-3, CHOICE) for heads in (16, 4)]
    compared += [("F", f"{best}, pre-LN", "softmax, pre-LN", rate, CHOICE) for rate in (1e-3, 2e-3)]
    compared += [("H", f"{best}, pre-LN", "softmax, pre-LN", 2e-3, PRE_LN)]  # the rate that F chooses for both
    compared += [("I", f"{best}, pre-LN", "softmax, pre-LN", 4e-3, CHOICE)]
    compared += [("I", "gaussian, pre-LN", "softmax, pre-LN", 2e-3, PRE_LN)]
    compared += [("I", f"{best}, pre-LN", "gaussian, pre-LN", 2e-3, PRE_LN)]
    found = [
        (part, f"{one}, to {other}, lr {rate:g}", differences(rows, (one, rate), (other, rate), seeds))
        for part, one, other, rate, seeds in compared
    ]
    sixteen, four = (logs for part, _, logs in found if part == "E")
    found.append(("E", "the change with 16 heads, to that with 4", (sixteen - four).dropna()))
    for part, comparison, logs in found:
        if len(logs):
            p = f"{stats.ttest_1samp(logs, 0).pvalue:.2g}" if len(logs) > 1 else "-"
            if part == "H":
                p += f"; equivalent within 2 %: {p_equivalent(logs, PRE_LN_MARGIN):.2g}"
            lines.append(f"| {part} | {comparison} | {len(logs)} | {change_text(logs)} | {p} |")
    return "\n".join(lines)


def table(by_rate: pd.DataFrame) -> str:
    rates = sorted(by_rate.index.get_level_values("lr").unique())
    lines = ["| attention | " + " | ".join(f"lr {rate:g}" for rate in rates) + " | chosen | attended share |"]
    lines.append("|---|" + "---:|" * (len(rates) + 2))
    for (name, rate), best in chosen(by_rate).iterrows():
        of_name = by_rate.loc[name]
        cells = [cell(of_name.loc[each]) if each in of_name.index else "-" for each in rates]
        lines.append(f"| {name} | {' | '.join(cells)} | {rate:g} | {share_text(best)} |")
    return "\n".join(lines)


def share_text(values: pd.Series) -> str:
    return "-" if np.isnan(values["share"]) else f"{100 * values['share']:.0f} %"


def cell(values: pd.Series) -> str:
    spread = "" if pd.isna(values["sd"]) else f" ± {values['sd']:.1f}"
    return f"{values['test']:.1f}{spread} ({values['n']:.0f})"


def draw(rows: pd.DataFrame, by_rate: pd.DataFrame) -> None:
    matplotlib.rcParams |= {"svg.hashsalt": "rates", "font.size": 9}
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6, 6), sharex=True, height_ratios=[3, 1.2], layout="constrained"
    )
    for name in COLOURS:
        means = by_rate.loc[name]
        style = {"color": COLOURS[name], "linestyle": "--" if name in ("none", "matched, eps 0") else "-"}
        top.plot(means.index, means["test"], label=name, **style)
        bottom.plot(means.index, means["least_share"], marker=".", **style)
        runs = rows[(rows["name"] == name) & rows["seed"].isin(CHOICE)]
        faces = "none" if name == "matched, eps 0" else COLOURS[name]  # its colour is that of matched
        top.scatter(runs["lr"], runs["test"], s=10, facecolors=faces, edgecolors=COLOURS[name])
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
    from studies.rates.overview import save_overview  # which imports this module

    rows = load()
    by_rate = summary(rows)
    write_parts(HERE / "README.md", parts())
    draw(rows, by_rate)
    save_overview(HERE)

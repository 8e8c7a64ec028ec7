"""README's picture: which keys a query attends to under softmax and sinc^4, and the result on WikiText-2."""

import math
import random
from pathlib import Path
from statistics import fmean

from fourierformer.files import checksum
from fourierformer.report.picture import INK, Picture, series_colour
from studies.rates.analyse import CHOICE, chosen, load, share_text, summary

NAME, TITLE = "overview", "Whom a query attends to, and what was found on WikiText-2"
RADIUS, POWER = 2.0, 4  # the paper's
EDGE, CELLS = 3.0, 121  # the maps show keys from -EDGE to EDGE, that many per side
Point = tuple[float, float]


def scene(keys: int = 24, seed: int = 5) -> tuple[Point, list[Point]]:
    """A query, and keys from a normal distribution by Python's generator, which is the same everywhere."""
    draw = random.Random(seed)
    points = [(round(1.1 * draw.gauss(0, 1), 3), round(1.1 * draw.gauss(0, 1), 3)) for _ in range(keys)]
    return (0.9, 0.5), points


def softmax_weight(query: Point, key: Point) -> float:
    """exp(q k / sqrt(D)): it grows without bound along the query."""
    return math.exp((query[0] * key[0] + query[1] * key[1]) / math.sqrt(2))


def sinc_weight(query: Point, key: Point) -> float:
    """prod_d sinc(R (q_d - k_d))^4: it is largest at the query, and 0 where a coordinate is pi / R away."""
    weight = 1.0
    for q, k in zip(query, key, strict=True):
        z = RADIUS * (q - k)
        weight *= (math.sin(z) / z if z else 1.0) ** POWER
    return weight


def shares(weight) -> list[float]:
    """The weight of each key divided by the sum of all."""
    query, keys = scene()
    weights = [weight(query, key) for key in keys]
    return [w / sum(weights) for w in weights]


def results() -> list[tuple[str, dict[float, list[float]], float, str]]:
    """(attention, {learning rate: test perplexity of every seed}, chosen rate, attended share) of README's table."""
    rows = load()
    by_setting = rows[rows["seed"].isin(CHOICE)].groupby(["name", "lr"])["test"].apply(list)
    best = chosen(summary(rows))
    return [(name, by_setting[name].to_dict(), rate, share_text(row)) for (name, rate), row in best.iterrows()]


def fingerprint() -> str:
    """Of every number that is drawn. It stands in the committed SVG, so that a test can tell when that is stale."""
    weights = [[round(share, 6) for share in shares(weight)] for weight in (softmax_weight, sinc_weight)]
    return checksum([scene(), weights, results()])[:16]


def save_overview(folder: Path) -> list[Path]:
    """overview.svg and overview.png."""
    folder.mkdir(parents=True, exist_ok=True)
    return Picture(_figure(), NAME, TITLE, [], description=fingerprint()).save(folder)


def _figure():
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(10.6, 3.1), layout=ConstrainedLayoutEngine(wspace=0.04))
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.25))
    _draw_weights(left, softmax_weight, "softmax: keys far along the query")
    _draw_weights(middle, sinc_weight, "sinc⁴, R = 2: keys near the query")
    _draw_results(right)
    return figure


def _draw_weights(axes, weight, title: str) -> None:
    """Shade: the weight a key would have at each point, as a share of the largest. Discs: 24 keys, by their share."""
    from matplotlib.colors import LinearSegmentedColormap

    query, keys = scene()
    ticks = [-EDGE + 2 * EDGE * i / (CELLS - 1) for i in range(CELLS)]
    field = [[weight(query, (x, y)) for x in ticks] for y in ticks]
    shades = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#5fa3d3"])
    axes.imshow(field, origin="lower", extent=(-EDGE, EDGE) * 2, cmap=shades, interpolation="bilinear", rasterized=True)
    attended = [600 * share for share in shares(weight)]
    axes.scatter(*zip(*keys, strict=True), s=3, color=INK.fixed, alpha=0.5, linewidth=0)
    axes.scatter(*zip(*keys, strict=True), s=attended, color=series_colour(0).fixed, alpha=0.7, linewidth=0)
    axes.plot(*query, marker="*", color=series_colour(1).fixed, markersize=11, linestyle="none")
    axes.annotate("query", query, (-13, 8), textcoords="offset points", fontsize=8, color=series_colour(1).fixed)
    axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    axes.set_title(title, fontsize=9, color=INK.fixed)
    axes.set_xlabel("first coordinate", fontsize=8, color=INK.fixed)
    axes.set_ylabel("second coordinate", fontsize=8, color=INK.fixed)
    axes.tick_params(colors=INK.fixed, labelsize=7, length=0, pad=4)
    axes.spines[:].set(color=INK.fixed, alpha=0.3, linewidth=0.6)


def _draw_results(axes) -> None:
    """A dot per seed, a stroke at the mean of the chosen learning rate, and the attended share beside them."""
    found = results()
    drawn = [value for _, by_rate, *_ in found for values in by_rate.values() for value in values]
    lowest, highest = min(drawn), max(drawn)
    rates = sorted({rate for _, by_rate, *_ in found for rate in by_rate})
    looks = {rate: series_colour(i - 1) if i else INK for i, rate in enumerate(rates)}
    for i, (_, by_rate, best, share) in enumerate(found):
        for rate, values in by_rate.items():
            colour = looks[rate].fixed
            axes.plot(values, [i] * len(values), "o", color=colour, markersize=4, alpha=0.6, markeredgewidth=0)
        axes.plot([fmean(by_rate[best])] * 2, [i - 0.28, i + 0.28], color=looks[best].fixed, linewidth=1.6)
        axes.text(1.15 * highest, i, share, fontsize=7.5, color=INK.fixed, verticalalignment="center")
    below = {"fontsize": 7.5, "color": INK.fixed, "verticalalignment": "top", "linespacing": 1.1}
    axes.text(1.15 * highest, len(found) - 0.4, "attended\nshare", **below)
    for rate, look in looks.items():
        axes.plot([], [], "o", color=look.fixed, markersize=4, label=f"{rate:g}")
    small = {"fontsize": 7, "title_fontsize": 7, "labelcolor": INK.fixed, "frameon": False}
    axes.legend(title="learning rate", loc="lower left", **small)
    axes.set(xscale="log", ylim=(len(found) - 0.5, -0.5), xlim=(0.93 * lowest, 1.5 * highest))
    ticks = [150, 200, 300, 500, 800]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(found)), [name for name, *_ in found])
    axes.set_title("WikiText-2, 4 layers: a dot per seed", fontsize=9, color=INK.fixed)
    axes.set_xlabel("test perplexity (lower is better)", fontsize=8, color=INK.fixed)
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    axes.tick_params(colors=INK.fixed, labelsize=8, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=INK.fixed, alpha=0.4, linewidth=0.8)

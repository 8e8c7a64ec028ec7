"""Time and memory against the number of tokens, on log-log axes: a slope is an exponent of N."""

from fourierformer.plots.picture import INK, SERIES, STYLES, Key, Picture, logarithmic, series_colour

PANEL = (3.6, 2.7)  # inches

Curves = dict[str, list[tuple[int, float]]]  # who: (tokens, value)


def cost_chart(rows: list[tuple[str, list[tuple[str, Curves]]]], name: str, title: str) -> Picture:
    """`rows`: (label of the y axis, [(heading, curves), ...]), a panel for every heading; a line for everyone."""
    from matplotlib.figure import Figure

    columns = max(len(panels) for _, panels in rows)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * len(rows)), layout="constrained")
    keys = _keys(rows)
    grid = figure.add_gridspec(len(rows), columns)
    for i, (y_label, panels) in enumerate(rows):
        beside = None
        for j, (heading, curves) in enumerate(panels):
            beside = axes = figure.add_subplot(grid[i, j], sharey=beside)
            _draw(axes, curves, keys)
            axes.set_title(heading, fontsize=9, color=INK.fixed)
            axes.set_xlabel("tokens N", fontsize=9, color=INK.fixed)
            axes.set_ylabel(y_label if j == 0 else "", fontsize=9, color=INK.fixed)
    return Picture(figure, name, title, list(keys.values()))


def _keys(rows: list[tuple[str, list[tuple[str, Curves]]]]) -> dict[str, Key]:
    """Ink for the first, which the others are held against; where the colours run out they come again with the next
    line style."""
    first, *others = dict.fromkeys(who for _, panels in rows for _, curves in panels for who in curves)
    styles = [STYLES[(i // len(SERIES)) % len(STYLES)] for i in range(len(others))]
    return {first: Key(INK, first)} | {who: Key(series_colour(i), who, styles[i]) for i, who in enumerate(others)}


def _draw(axes, curves: Curves, keys: dict[str, Key]) -> None:
    for who, points in curves.items():
        look = {"color": keys[who].colour.fixed, "linestyle": keys[who].style, "linewidth": 1.2}
        axes.plot(*zip(*points, strict=True), marker="o", markersize=2.5, **look)
    axes.set(xscale="log", yscale="log")
    counts = sorted({tokens for points in curves.values() for tokens, _ in points})
    shown = counts[:: max(1, -(-len(counts) // 4))]  # of seven every other one
    axes.set_xticks(shown, [f"{count:,}" for count in shown])
    axes.minorticks_off()
    logarithmic(axes.yaxis, (1,))
    axes.grid(axis="y", color=INK.fixed, alpha=0.14, linewidth=0.6)
    axes.tick_params(which="both", colors=INK.fixed, labelsize=8, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=INK.fixed, alpha=0.4, linewidth=0.8)

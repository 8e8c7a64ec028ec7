"""Times side by side on a logarithmic scale, since they differ by powers of ten: dots, for such a scale has no zero."""

from fourierformer.plots.picture import INK, Key, Picture, logarithmic, new_figure, series_colour


def time_chart(values: dict[str, dict[str, float]], name: str, title: str, x_label: str) -> Picture:
    """`values`: kind -> {who: value}; a line for everyone, a dot of one colour for each kind."""
    everyone = list(dict.fromkeys(who for kind in values.values() for who in kind))
    figure, axes = new_figure(x_label, "", (3.6, 0.8 + 0.32 * len(everyone)))
    axes.grid(axis="x", color=INK.fixed, alpha=0.14, linewidth=0.6)
    keys = [Key(series_colour(i), kind) for i, kind in enumerate(values)]
    for kind, key in zip(values.values(), keys, strict=True):
        places = [everyone.index(who) for who in kind]
        axes.plot(list(kind.values()), places, color=key.colour.fixed, marker="o", markersize=6, linestyle="none")
    axes.set_xscale("log")
    logarithmic(axes.xaxis, (1,))
    axes.set_yticks(range(len(everyone)), everyone, parse_math=False)
    axes.margins(x=0.08, y=0.5 / len(everyone))
    axes.invert_yaxis()
    return Picture(figure, name, title, keys)

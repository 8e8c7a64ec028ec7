"""A quantity of each attention layer, against depth."""

from fourierformer.plots.curves import curve_keys, draw_curve
from fourierformer.plots.picture import Picture, new_figure, whole_numbers
from fourierformer.results.curves import Curve


def layer_chart(curves: list[Curve], name: str, title: str, quantity: str, caption: str = "") -> Picture:
    """Mean lines with the range over seeds; the steps of the curves are layers, counted from 0."""
    figure, axes = new_figure("layer", quantity)
    whole_numbers(axes.xaxis)
    axes.margins(x=0.04)
    for curve in curves:
        draw_curve(axes, curve)
    return Picture(figure, name, title, curve_keys(curves), caption)

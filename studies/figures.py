"""Files of the figures of studies."""

from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG and PNG beside each other, the same bytes for the same figure, and close it."""
    for suffix, metadata in (("svg", {"Date": None}), ("png", None)):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=150, metadata=metadata)
    pyplot.close(figure)

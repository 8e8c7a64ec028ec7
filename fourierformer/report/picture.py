"""One chart, two outputs: inline SVG that takes its colours from the page, and files with fixed colours on white.

matplotlib writes fixed colours; for the page they are exchanged for CSS: ink for `currentColor`, a series for
`var(--series-N)` with the fixed colour as its fallback. On the page a legend is HTML and no name from a run enters the
picture; a file stands alone, so its title and legend are drawn into it.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fourierformer.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette, safe for colour-blind readers, light members darkened and violet for their second blue; the
# page has a dark set
SERIES = ("#0072b2", "#d55e00", "#00805f", "#a8538b", "#8a6800", "#4a1a8c")
STYLES = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
WIDE, SMALL, PAGE = (5.0, 3.1), (3.6, 2.7), 9.6  # inches; letters have one size, so a small chart is drawn small
DASH = 4  # line widths
SOLID, DASHED, DOTTED, DASH_DOTTED = STYLES
FINISHED = (SOLID, DASHED, DASH_DOTTED, (0, (3, 1, 1, 1, 1, 1)))  # beside runs that did not complete, which are dotted


@dataclass(frozen=True)
class Colour:
    fixed: str  # in files
    css: str  # on the page


INK = Colour("#0a0b0c", "currentColor")  # nothing else uses it, so it can be exchanged in the SVG


def series_colour(number: int) -> Colour:
    number %= len(SERIES)
    return Colour(SERIES[number], f"var(--series-{number}, {SERIES[number]})")


def series_style(number: int) -> tuple:
    """Where the colours run out they come again with the next line style."""
    return STYLES[number // len(SERIES) % len(STYLES)]


def layer_colour(layer: int, count: int) -> Colour:
    """From the first series colour (first layer) to the second (last layer), mixed by the browser or here."""
    share = layer / max(count - 1, 1)
    first, last = (bytes.fromhex(colour[1:]) for colour in SERIES[:2])
    mixed = bytes(round(a + share * (b - a)) for a, b in zip(first, last, strict=True))
    css = f"color-mix(in oklab, {series_colour(1).css} {round(100 * share)}%, {series_colour(0).css})"
    return Colour(f"#{mixed.hex()}", css)


@dataclass(frozen=True)
class Key:
    """One legend entry: the colour and the line style of its sample, and the text. The sample of points without a line
    is a "disc" or an open "circle"."""

    colour: Colour
    label: str
    style: tuple = SOLID
    point: str = ""

    @property
    def dashes(self) -> str:
        return " ".join(str(2 * length) for length in self.style[1])

    @property
    def look(self) -> dict[str, Any]:
        """The keyword arguments of matplotlib, without the colour."""
        if not self.point:
            return {"linestyle": self.style}
        return {"linestyle": "none", "marker": "o", "fillstyle": "none" if self.point == "circle" else "full"}


@dataclass(frozen=True)
class Picture:
    """A drawn figure. `name` is unique on its page: it keeps ids apart and names the files."""

    figure: "Figure" = field(repr=False)
    name: str
    title: str
    keys: list[Key]
    caption: str = ""
    description: str = ""  # written into the SVG file, unseen
    wide: bool = False  # takes a whole line of the page

    def inline(self) -> str:
        import matplotlib

        buffer = io.StringIO()
        # text stays text (selectable, in the page's font); the salt makes the file the same every time
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML needs none
        # several charts share a page, and every one of them numbers its parts from 1
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{self.name}-", svg)
        svg = self._in_css(svg)
        box = re.search(r'viewBox="[^"]*"', svg)
        assert box is not None  # matplotlib writes one
        title = f'<title id="{self.name}-title">{escape(self.title)}</title>'
        head = f'<svg role="img" aria-labelledby="{self.name}-title" {box[0]}>{title}'
        return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)

    def save(self, folder: Path) -> list[Path]:
        """name.svg and name.png, with title and legend inside. Last of all: they stay in the figure."""
        import matplotlib

        paths = [folder / f"{self.name}.{kind}" for kind in ("svg", "png")]
        metadata = {"Date": None, "Title": self.title} | ({"Description": self.description} if self.description else {})
        # letters as outlines: the file looks the same on a machine without the font
        with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": self.name, "text.parse_math": False}):
            self._complete()
            with replacing(paths[0]) as file:
                self.figure.savefig(file, format="svg", facecolor="white", metadata=metadata)
            with replacing(paths[1]) as file:
                self.figure.savefig(file, format="png", facecolor="white", dpi=200)
        return paths

    def _in_css(self, svg: str) -> str:
        """Replace fixed colours, in one pass, since a replacement contains fixed colours too."""
        css = {colour.fixed: colour.css for colour in (INK, *(key.colour for key in self.keys))}
        return re.sub("|".join(css), lambda match: css[match[0]], svg)

    def _complete(self) -> None:
        from matplotlib.lines import Line2D

        if not self.keys:  # everything is labelled where it is drawn
            return
        short = all(len(key.label) <= 12 for key in self.keys)
        columns = min(len(self.keys), 4 if short else 2)
        width, height = self.figure.get_size_inches()
        self.figure.set_size_inches(width, height + 0.3 + 0.18 * -(-len(self.keys) // columns))
        self.figure.suptitle(self.title, fontsize=9, color=INK.fixed)
        lines = [Line2D([], [], color=key.colour.fixed, linewidth=1.6, **key.look) for key in self.keys]
        labels = [key.label for key in self.keys]
        looks: dict[str, Any] = {"ncols": columns, "frameon": False, "labelcolor": INK.fixed, "fontsize": 7}
        self.figure.legend(lines, labels, loc="outside lower center", **looks)


def _import_matplotlib() -> None:
    """Import matplotlib without MPLBACKEND: its import fails where that names a backend that is not installed (Jupyter
    exports one to every process that it starts). Files need no backend; windows get the named one as usual."""
    if "matplotlib" in sys.modules:
        return
    named = os.environ.pop("MPLBACKEND", None)
    import matplotlib

    if named is not None:
        os.environ["MPLBACKEND"] = named
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = named


_import_matplotlib()


def new_figure(x_label: str, y_label: str, size: tuple[float, float] = WIDE):
    """Return (figure, axes)."""
    figure, (axes,) = new_panels([""], x_label, y_label, size)
    return figure, axes


def new_panels(titles: list[str], x_label: str, y_label: str, size: tuple[float, float]):
    """Return (figure, axes of each panel): panels side by side with one scale of y, labelled at the first."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "axes.labelsize": 9, "text.parse_math": False}):
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        panels[0].set_ylabel(y_label, color=INK.fixed)
        for axes, title in zip(panels, titles, strict=True):
            axes.set_xlabel(x_label, color=INK.fixed)
            axes.set_title(title, fontsize=9, color=INK.fixed)
            plain(axes)
    return figure, panels


def panel_grid(count: int, across: int, x_label: str, y_label: str):
    """Return (figure, axes of each panel): rows of small panels with one scale, as wide as the page."""
    from matplotlib.figure import Figure

    rows = -(-count // across)
    figure = Figure(figsize=(PAGE, 0.4 + (1.5 if across > 2 else 2.1) * rows), layout="constrained")
    grid = figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in grid[count:]:
        axes.remove()
    for i, axes in enumerate(grid[:count]):
        plain(axes)
        axes.tick_params(labelsize=7, labelbottom=i + across >= count, labelleft=i % across == 0)
        if i + across >= count:  # the legend of a file would lie on a label of the whole figure
            axes.set_xlabel(x_label, fontsize=8, color=INK.fixed)
    figure.supylabel(y_label, fontsize=9, color=INK.fixed, parse_math=False)
    return figure, list(grid[:count])


def plain(axes) -> None:
    """Style the axes: thin horizontal rules, no frame, ticks with the whole number instead of an offset."""
    from matplotlib.ticker import ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(formatter := axis.get_major_formatter(), ScalarFormatter):
            formatter.set_useOffset(False)
    axes.grid(axis="y", color=INK.fixed, alpha=0.14, linewidth=0.6)
    axes.tick_params(which="both", colors=INK.fixed, length=0, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=INK.fixed, alpha=0.4, linewidth=0.8)
    axes.margins(x=0.01)


def in_turn(lines: Iterable["Line2D"]) -> None:
    """Dash lines that coincide, each in its turn: the last would hide the others."""
    together: list[list[Line2D]] = []
    for line in lines:
        group = next((group for group in together if _cover(group[0], line)), None)
        if group:
            group.append(line)
        else:
            together.append([line])
    for group in together:
        for i, line in enumerate(group if len(group) > 1 else ()):
            line.set_linestyle((i * DASH, (DASH, (len(group) - 1) * DASH)))


def _cover(one: "Line2D", other: "Line2D") -> bool:
    """Whether two lines are nowhere further apart than half a line's width."""
    first, second = (line.get_transform().transform(np.asarray(line.get_xydata())) for line in (one, other))
    return first.shape == second.shape and bool(
        np.allclose(first, second, rtol=0, atol=0.5 * one.get_linewidth(), equal_nan=True)
    )


def whole_numbers(axis) -> None:
    """Place ticks at whole numbers only, for counts."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def logarithmic(axis, subdivisions: tuple[int, ...] = (1, 2, 5)) -> None:
    """Label 1, 2 and 5 times the powers of ten with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subdivisions, numticks=12))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))

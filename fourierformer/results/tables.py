"""Tables written for the terminal and for Markdown."""

import io
import re
import textwrap
from collections.abc import Iterable

from fourierformer.results.comparison import Row
from fourierformer.results.layout import TEXT_COLUMNS, Table, tables

SCREEN = 120  # columns that the lines under a table may take


def render_text(rows: Iterable[Row], colour: bool = False) -> str:
    return text_of(tables(rows), colour)


def render_markdown(rows: Iterable[Row]) -> str:
    return markdown_of(tables(rows))


def text_of(found: Iterable[Table], colour: bool = False) -> str:
    """For the terminal. The best value of a column has a star, since colour may be off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # wide enough never to wrap a cell: a terminal that is too narrow wraps the line itself, nothing is cut
    page = io.StringIO()
    console = Console(file=page, force_terminal=colour, no_color=not colour, width=1000)
    for table in found:
        grid = Grid(
            title=Text(table.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        starred = {j for _, j in table.best}
        for name in table.header:
            grid.add_column(Text(name), justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
        for i, line in enumerate(table.body):
            if i in table.starts:
                grid.add_section()
            # every other cell of a column with a star is padded, so that the digits still stand under each other
            marks = [" *" if (i, j) in table.best else "  " * (j in starred) for j in range(len(line))]
            grid.add_row(
                *(Text(cell + mark, "bold" if "*" in mark else "") for cell, mark in zip(line, marks, strict=True))
            )
        console.print(grid)
        star = [f"* best of its column{' for the same weights' if table.starts else ''}"] if table.best else []
        # a path or a name is never broken, or it could not be copied
        fold = textwrap.TextWrapper(
            SCREEN, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        for sentence in [*star, *table.lines]:
            console.print(Text(fold.fill(sentence)), soft_wrap=True)
        console.print()
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def markdown_of(found: Iterable[Table]) -> str:
    """For README and issues. The best value of a column is bold."""
    parts = []
    for table in found:
        lines = [
            [_escape(name).replace("\n", " ") for name in table.header],
            ["---" if name in TEXT_COLUMNS else "---:" for name in table.header],
        ]
        for i, line in enumerate(table.body):
            lines.append(
                [f"**{_escape(cell)}**" if (i, j) in table.best else _escape(cell) for j, cell in enumerate(line)]
            )
        grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        under = "\n".join(f"- {_escape(line)}" for line in table.lines)
        parts.append(f"**{_escape(table.title)}**\n\n{grid}\n\n{under}")
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Markdown inside a table cell: only what would break the grid or turn into markup. Angle brackets as entities:
    not every reader of Markdown takes a backslash before them."""
    text = re.sub(r"([|*`\[\]\\])", r"\\\1", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")

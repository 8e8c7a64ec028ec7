"""Tables written for the terminal and for Markdown."""

import io
import re
from collections.abc import Iterable

from fourierformer.results.comparison import Row
from fourierformer.results.layout import TEXT_COLUMNS, tables


def render_text(rows: Iterable[Row], colour: bool = False) -> str:
    """For the terminal. The best value of a column has a star, since colour may be off."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # wide enough never to wrap a cell: a terminal that is too narrow wraps the line itself, nothing is cut
    console = Console(file=io.StringIO(), force_terminal=colour, no_color=not colour, width=1000)
    for table in tables(rows):
        style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
        grid = Grid(title=Text(table.title), title_justify="left", title_style="bold", **style)
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
        for line in [*star, *table.protocols, *table.notes]:
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def render_markdown(rows: Iterable[Row]) -> str:
    """For README and issues. The best value of a column is bold."""
    parts = []
    for table in tables(rows):
        lines = [
            [_escape(name).replace("\n", ", ") for name in table.header],
            ["---" if name in TEXT_COLUMNS else "---:" for name in table.header],
        ]
        for i, line in enumerate(table.body):
            lines.append(
                [f"**{_escape(cell)}**" if (i, j) in table.best else _escape(cell) for j, cell in enumerate(line)]
            )
        grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        under = "\n".join(f"- {_escape(line)}" for line in [*table.protocols, *table.notes])
        parts.append(f"**{_escape(table.title)}**\n\n{grid}\n\n{under}")
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Markdown inside a table cell: only what would break the grid or turn into markup."""
    return re.sub(r"([|*<>`\[\]\\])", r"\\\1", text)

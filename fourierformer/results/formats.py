"""A table as a grid of strings, and how it is written: for the terminal, as Markdown, as LaTeX."""

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fourierformer.printing import visible
from fourierformer.results.comparison import Row

DASH = "-"
# columns of words; all others hold numbers and stand to the right
TEXT_COLUMNS = frozenset(
    {"model", "attention", "weights", "state", "split", "evaluation", "quantity", "comparison", "verdict"}
    | {"status of the paper's"}
)
DISPENSABLE = ("data wait", "train time", "/s", "parameters")  # ends of headers, the least important one first
SCREEN = 120  # columns that the lines under a table may take
LATEX = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # after a line end \\ a bracket would be read as its argument
    "]": "{]}",
    "|": r"$|$",
    "*": "{*}",  # as would a star
}
PREAMBLE = r"% needs \usepackage{booktabs}"


@dataclass(frozen=True)
class Table:
    """One experiment on one data set: a grid of strings, the best cells in it, and the lines that belong under it."""

    title: str
    rows: list[Row]
    header: list[str]  # a line break separates the metric from its protocol
    body: list[list[str]]
    best: set[tuple[int, int]] = field(default_factory=set)
    starts: set[int] = field(default_factory=set)  # lines of the body that begin a further block
    scale: list[str] = field(default_factory=list)
    protocols: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # how its rows differ from softmax
    differences: list[str] = field(default_factory=list)  # to softmax, for each line of the body; empty where none is
    own_settings: bool = False  # each attention stands at its own best settings, and is compared there
    folded: bool = False  # on the page: opened by a click

    @property
    def primary(self) -> str:
        """The metric that its rows are judged by."""
        return self.rows[0].primary if self.rows else ""

    @property
    def lines(self) -> list[str]:
        """Everything that stands under the table: scale and protocol, then what to know before believing it."""
        return [*self.context, *self.findings]

    @property
    def context(self) -> list[str]:
        return [*self.scale, *self.protocols, *self.notes]

    def without_columns(self, names: Iterable[str]) -> "Table":
        kept = [j for j, name in enumerate(self.header) if name not in set(names)]
        header, *body = ([line[j] for j in kept] for line in (self.header, *self.body))
        best = {(i, kept.index(j)) for i, j in self.best if j in kept}
        return replace(self, header=header, body=body, best=best)

    def without_lines(self, lines: Iterable[str]) -> "Table":
        """Without those that stand elsewhere already."""
        known = set(lines)
        scale, protocols, notes, findings = (
            [line for line in lines if line not in known]
            for lines in (self.scale, self.protocols, self.notes, self.findings)
        )
        return replace(self, scale=scale, protocols=protocols, notes=notes, findings=findings)

    def with_differences(self) -> "Table":
        """With a further column, behind the last number that is compared."""
        if not self.differences:
            return self
        place = 1 + max(column for _, column in self.best) if self.best else len(self.header)
        cells = ["against\nsoftmax", *(text or DASH for text in self.differences)]
        header, *body = (
            [*line[:place], cell, *line[place:]] for line, cell in zip([self.header, *self.body], cells, strict=True)
        )
        return replace(self, header=header, body=body, differences=[])


def text_of(tables: Iterable[Table], colour: bool = False, width: int | None = None) -> str:
    """For the terminal; with its `width` without the columns that do not fit. The best value of a column has a star,
    since colour may be off."""
    from rich.console import Console
    from rich.text import Text

    # wide enough never to wrap a cell: where the last columns do not fit, nothing is cut
    page = io.StringIO()
    console = Console(file=page, force_terminal=colour, no_color=not colour, width=1000)
    # a path or a name is never broken, or it could not be copied
    fold = textwrap.TextWrapper(
        min(SCREEN, width or SCREEN),
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for table in tables:
        table = _fitting(table, width) if width else table
        console.print(_grid(table))
        star = [f"* best of its column{' for the same weights' if table.starts else ''}"] if table.best else []
        for sentence in [*star, *table.lines]:
            console.print(Text(fold.fill(visible(sentence))), soft_wrap=True)
        console.print()
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _fitting(table: Table, width: int) -> Table:
    """The table without as many columns as it needs to fit: time and size first, then validation beside a test."""
    dispensable = [name for end in DISPENSABLE for name in table.header if name.endswith(end)]
    left_out: list[str] = []
    tested = any(name.startswith("test") for name in table.header)
    for name in [*dispensable, *(name for name in table.header if tested and name.startswith("valid"))]:
        if _width_of(table) <= width:
            break
        table = table.without_columns([name])
        left_out.append(name.replace("\n", " "))
    note = [f"not shown at {width} columns: {', '.join(left_out)}"] if left_out else []
    return replace(table, notes=[*table.notes, *note])


def _width_of(table: Table) -> int:
    """Columns of a terminal: cells and stars, and two blanks between neighbours."""
    star = {j: 2 for _, j in table.best}
    columns = zip(table.header, *table.body, strict=True)
    lengths = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns]
    return sum(length + star.get(j, 0) + 2 for j, length in enumerate(lengths))


def _grid(table: Table):
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        title=Text(visible(table.title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    grid.collapse_padding = True
    starred = {j for _, j in table.best}
    for name in table.header:
        grid.add_column(Text(visible(name)), justify="left" if name in TEXT_COLUMNS else "right", no_wrap=True)
    for i, line in enumerate(table.body):
        if i in table.starts:
            grid.add_section()
        # every other cell of a column with a star is padded, so that the digits still stand under each other
        marks = [" *" if (i, j) in table.best else "  " * (j in starred) for j in range(len(line))]
        cells = zip(line, marks, strict=True)
        grid.add_row(*(Text(visible(cell) + mark, "bold" if "*" in mark else "") for cell, mark in cells))
    return grid


def markdown_of(tables: Iterable[Table]) -> str:
    """For README and issues. The best value of a column is bold."""
    parts = []
    for table in tables:
        header = [_in_markdown(name).replace("\n", " ") for name in table.header]
        body = [
            [f"**{_in_markdown(cell)}**" if (i, j) in table.best else _in_markdown(cell) for j, cell in enumerate(line)]
            for i, line in enumerate(table.body)
        ]
        grid = markdown_grid(header, body, [name in TEXT_COLUMNS for name in table.header])
        under = "\n".join(f"- {_in_markdown(line)}" for line in table.lines)
        parts.append(f"**{_in_markdown(table.title)}**\n\n{grid}\n\n{under}")
    return "\n\n".join(parts) + "\n"


def markdown_grid(header: Sequence[str], body: Iterable[Sequence[str]], words: Sequence[bool] | None = None) -> str:
    """`words`: which columns hold words, which stand to the left, and no numbers; by default all."""
    rule = ["---" if word else "---:" for word in words or [True] * len(header)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *body))


def _in_markdown(text: str) -> str:
    """Inside a table cell: only what would break the grid or turn into markup. Angle brackets as entities: not every
    reader of Markdown takes a backslash before them."""
    text = re.sub(r"([|*`\[\]\\])", r"\\\1", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")


def latex_of(tables: Iterable[Table]) -> str:
    """For a paper: booktabs, scale and protocol in the caption, everything else in small print below."""
    return "\n\n".join([PREAMBLE, *map(_latex_table, tables)]) + "\n"


def _latex_table(table: Table) -> str:
    caption = ". ".join(map(in_latex, [table.title, *table.scale, *table.protocols]))
    columns = "".join("l" if name in TEXT_COLUMNS else "r" for name in table.header)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}.}}", rf"\begin{{tabular}}{{{columns}}}"]
    lines += [r"\toprule", " & ".join(map(_latex_head, table.header)) + r" \\", r"\midrule"]
    for i, line in enumerate(table.body):
        lines += [r"\midrule"] if i in table.starts else []
        lines.append(" & ".join(_latex_cell(cell, (i, j) in table.best) for j, cell in enumerate(line)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if notes := [*table.notes, *table.findings]:
        small = r" \par ".join(map(in_latex, notes))
        box = r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize\raggedright "
        lines.append(box + small + r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}"])


def _latex_head(name: str) -> str:
    lines = list(map(in_latex, name.split("\n")))
    return lines[0] if len(lines) == 1 else r"\begin{tabular}{@{}r@{}}" + r" \\ ".join(lines) + r"\end{tabular}"


def _latex_cell(cell: str, best: bool) -> str:
    if cell == DASH:
        return "--"
    text = re.sub(r"^-(?=\d)", "$-$", in_latex(cell))  # a sign is a minus, not a hyphen
    return rf"\textbf{{{text}}}" if best else text


def in_latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^±<>\[\]|*]", lambda match: LATEX[match[0]], text)

"""Tables for a paper: booktabs, scale and protocol in the caption, everything else in small print below."""

import re
from collections.abc import Iterable

from fourierformer.results.layout import DASH, TEXT_COLUMNS, Table

SPECIAL = {
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
NEW_LINE = r" \\ "
PREAMBLE = r"% needs \usepackage{booktabs}"


def latex_of(found: Iterable[Table]) -> str:
    return "\n\n".join([PREAMBLE, *(_table(table) for table in found)]) + "\n"


def escape(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^±<>\[\]|*]", lambda match: SPECIAL[match[0]], text)


def _table(table: Table) -> str:
    caption = ". ".join(escape(line) for line in [table.title, *table.scale, *table.protocols])
    columns = "".join("l" if name in TEXT_COLUMNS else "r" for name in table.header)
    header = " & ".join(_head(name) for name in table.header)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}.}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{header} \\",
        r"\midrule",
    ]
    for i, line in enumerate(table.body):
        lines += [r"\midrule"] if i in table.starts else []
        lines.append(" & ".join(_cell(cell, (i, j) in table.best) for j, cell in enumerate(line)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        small = r" \par ".join(escape(note) for note in table.notes)
        lines.append(
            r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize\raggedright " + small + r"\end{minipage}"
        )
    return "\n".join([*lines, r"\end{table}"])


def _head(name: str) -> str:
    lines = [escape(line) for line in name.split("\n")]
    return lines[0] if len(lines) == 1 else r"\begin{tabular}{@{}r@{}}" + NEW_LINE.join(lines) + r"\end{tabular}"


def _cell(cell: str, best: bool) -> str:
    if cell == DASH:
        return "--"
    # a sign is a minus, not a hyphen
    text = re.sub(r"^-(?=\d)", "$-$", escape(cell))
    return rf"\textbf{{{text}}}" if best else text

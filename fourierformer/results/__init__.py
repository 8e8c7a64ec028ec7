"""Run directories in, tables out: the only road from a training run to a number that is shown to anyone.

runs.py reads run directories and measured.py committed files of them, comparison.py groups them over seeds, metrics.py
says what each number is called and which way is better. layout.py puts the groups into tables, with the lines of
remarks.py and significance.py under them; evidence.py, redundancy.py and paper_tables.py make the tables of intervals,
of heads, and of what the paper prints (paper.py). tables.py writes all of them for the terminal and for Markdown,
latex.py for a paper, documents.py for README and docs/.
Two rules hold everywhere: a run that cannot be used is named with its state, and a value that is not there is a dash.
"""

from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.layout import Table
from fourierformer.results.runs import HOW_TO_MAKE_ONE, Run, collect
from fourierformer.results.tables import markdown_of, render_markdown, render_text, tables, text_of

__all__ = [
    "HOW_TO_MAKE_ONE",
    "Cell",
    "Row",
    "Run",
    "Table",
    "collect",
    "comparison",
    "markdown_of",
    "render_markdown",
    "render_text",
    "tables",
    "text_of",
]

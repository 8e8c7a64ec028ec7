"""Run directories in, tables out: the only road from a training run to a number that is shown to anyone.

runs.py reads run directories, comparison.py groups them over seeds, tables.py lays the groups out for the terminal,
Markdown and HTML.
Two rules hold everywhere: a run that cannot be used is named with its state, and a value that is not there is a dash.
"""

from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.runs import HOW_TO_MAKE_ONE, Run, collect
from fourierformer.results.tables import Table, render_markdown, render_text, tables

__all__ = [
    "HOW_TO_MAKE_ONE",
    "Cell",
    "Row",
    "Run",
    "Table",
    "collect",
    "comparison",
    "render_markdown",
    "render_text",
    "tables",
]

"""Run directories in, tables out: the only road from a training run to a number that is shown to anyone.

runs.py reads run directories, comparison.py groups them over seeds, metrics.py says what each number is called and
which way is better, layout.py puts the groups into tables and remarks.py the lines under them, tables.py writes these
for the terminal and for Markdown.
Two rules hold everywhere: a run that cannot be used is named with its state, and a value that is not there is a dash.
"""

from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.layout import Table
from fourierformer.results.runs import HOW_TO_MAKE_ONE, Run, collect
from fourierformer.results.tables import render_markdown, render_text, tables

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

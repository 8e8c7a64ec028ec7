"""Run directories in, tables out: the only road from a training run to a number that is shown to anyone.

runs.py reads run directories and measured.py committed files of them; comparison.py groups them over seeds and names
their numbers; statistics.py tests their differences. tables.py lays the groups out, intervals.py makes the long tables
beside the numbers of paper.py, hypotheses.py that of docs/results.md. formats.py writes all of them for the terminal,
as Markdown and as LaTeX, documents.py into README and docs/.
Two rules hold everywhere: a run that cannot be used is named with its state, and a value that is not there is a dash.
"""

from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.formats import Table, markdown_of, text_of
from fourierformer.results.runs import HOW_TO_MAKE_ONE, Run, collect
from fourierformer.results.tables import render_text, tables

__all__ = [
    "HOW_TO_MAKE_ONE",
    "Cell",
    "Row",
    "Run",
    "Table",
    "collect",
    "comparison",
    "markdown_of",
    "render_text",
    "tables",
    "text_of",
]

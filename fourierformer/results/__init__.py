"""Run directories in, tables out: the only road from a training run to a number that is shown to anyone.

| file | content |
|---|---|
| collection.py, runs.py, measured.py | finds and reads run directories, and committed CSV files of them |
| comparison.py | groups runs over seeds |
| labels.py, metrics.py | labels of rows by what distinguishes them; names and units of metrics |
| statistics.py, baseline.py | tests of differences; which rows may be compared with softmax |
| tables.py, intervals.py, paper.py | tables of rows, intervals beside the paper's numbers |
| formats.py | a table for the terminal, in Markdown, in LaTeX |
| documents.py, faults.py | generated parts of README and docs/; the table of injected faults |
| warnings.py | results whose loss is misleading |
| card.py | the model card of an exported run |

A measured number changes its form five times until it stands in README: number, JSON (summary.json), CSV cell
(`make_tables.py --collect`), `Run`, `Cell` (its values by seed), text. Two rules hold everywhere: an unusable run is
named with its state, and a missing value is a dash.
"""

from fourierformer.results.collection import HOW_TO_MAKE_ONE, collect
from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.formats import Table, markdown_of, text_of
from fourierformer.results.runs import Run
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

"""One self-contained HTML page about a set of runs: tables, charts, states, where they ran, and how to repeat them.

runs.py makes a section for each table of the comparison, and one of the paper's tables; committed.py shows what is
measured without a run, where its files are named. section.py says what a section is made of,
page.py puts everything together.
"""

from fourierformer.report.committed import committed_sections
from fourierformer.report.page import render, write_report

__all__ = ["committed_sections", "render", "write_report"]

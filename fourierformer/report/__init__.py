"""One self-contained HTML page about a set of runs: tables, charts, states, where they ran, and how to repeat them.

runs.py makes a section for each table of the comparison, heads.py adds how much heads differ, paper.py the paper's
tables. What is measured without a run (estimators.py, kernels.py) is read from committed CSV files and stands on the
page only where it is asked for. origin.py says where the runs come from; page.py puts everything together.
"""

from fourierformer.report.committed import committed_sections
from fourierformer.report.page import render, write_report

__all__ = ["committed_sections", "render", "write_report"]

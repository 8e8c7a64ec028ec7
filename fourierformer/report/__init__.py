"""One self-contained HTML page about a set of runs, and its pictures.

| file | content |
|---|---|
| page.py | the page: sections, all runs, where they ran, how to repeat them |
| section.py | a section: tables (those of `fourierformer.results`) and groups of charts |
| runs.py | a section for each table of the comparison, and one for the paper's tables |
| committed.py | a section for times of kernels, from CSV files |
| picture.py | one chart, two outputs: inline SVG in the page's colours, and files on white |
| curves.py | curves over steps, time and layers |
| charts.py | differences with their intervals, times, costs |
| patterns.py, maps.py | who sees whom: patterns of sparse attentions, maps of trained models |
| robustness.py | accuracy under attack against its strength |
"""

from fourierformer.report.committed import committed_sections
from fourierformer.report.page import render, write_report

__all__ = ["committed_sections", "render", "write_report"]

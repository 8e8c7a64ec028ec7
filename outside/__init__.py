"""Other people's test suites and reference formulas, run on this package.

A module has the cases of one suite, and only paths and names of its code. `python -m outside` (make validate-outside)
runs them and writes the table of docs/reliability.md.
"""

"""Charts: drawn once by matplotlib, shown inside the page in its colours, and saved as PNG and SVG on white.

picture.py is the one file that knows about both outputs. curves.py draws what runs log, charts.py differences, times
and costs, estimators.py the estimators of the theory, patterns.py who sees whom, overview.py README's picture.
"""

"""Charts: drawn once by matplotlib, shown inside the page in its colours, and saved as PNG and SVG on white.

picture.py is the one place that knows about both outputs; curves.py draws what a run logs over its steps,
differences.py what is better and how surely, layers.py what depends on depth, estimators.py the rates of the theory,
times.py the times of kernels, patterns.py who sees whom.
"""

from fourierformer.plots.curves import comparison_chart, diagnostic_chart
from fourierformer.plots.differences import Difference, difference_chart
from fourierformer.plots.estimators import KNOWN, ErrorLine, estimator_chart, estimator_keys, ratio_chart
from fourierformer.plots.layers import layer_chart
from fourierformer.plots.picture import Key, Picture
from fourierformer.plots.times import time_chart

__all__ = [
    "KNOWN",
    "Difference",
    "ErrorLine",
    "Key",
    "Picture",
    "comparison_chart",
    "diagnostic_chart",
    "difference_chart",
    "estimator_chart",
    "estimator_keys",
    "layer_chart",
    "ratio_chart",
    "time_chart",
]

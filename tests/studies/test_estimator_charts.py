"""Charts of the estimators show the numbers of the committed files, and slopes as the theorems state them."""

import numpy as np
import pytest

from fourierformer.files import read_csv
from studies.estimators.charts import (
    COUNT,
    ERROR,
    correlation_panel,
    error_chart,
    rate_panels,
    ratio_chart,
    ratio_panels,
)
from tests.helpers.command_line import REPOSITORY

RATES, SLOPES, EXACT = (
    read_csv(REPOSITORY / "studies/estimators" / f"estimator_{name}.csv").rows
    for name in ("rates", "slopes", "correlations")
)


def colours(picture) -> dict[str, str]:
    return {key.label: key.colour.fixed for key in picture.keys}


def test_ratios_lie_where_the_file_says():
    picture = ratio_chart(ratio_panels(EXACT), "name", "title")
    assert [axes.get_title() for axes in picture.figure.axes] == ["D = 2", "D = 3"]
    for axes in picture.figure.axes:
        dim = axes.get_title()[-1]
        for line, key in zip(axes.lines, picture.keys, strict=True):
            wanted = {"dim": dim, "samples": "1000", "kernel": key.label}
            rows = [row for row in EXACT if wanted.items() <= row.items()]
            assert len(rows) == 7
            correlations, ratios = line.get_data()
            assert np.tanh(correlations) == pytest.approx([float(row["correlation"]) for row in rows])
            assert list(ratios) == [float(row["ratio_to_gaussian"]) for row in rows]


@pytest.mark.parametrize(
    ("part", "exponent"), [("density", lambda d: -2 / (d + 2)), ("regression", lambda d: -4 / (d + 4))]
)
def test_every_case_has_a_panel_with_the_slope_of_its_theorem(part, exponent):
    panels = rate_panels(part, RATES, SLOPES)
    assert [panel.title[-1] for panel in panels] == list("112233")
    picture = error_chart(panels, COUNT, ERROR[part], "name", "title")
    for axes, panel in zip(picture.figure.axes, panels, strict=True):
        counts, stated = axes.lines[-1].get_data()
        slope = np.log(stated[-1] / stated[0]) / np.log(counts[-1] / counts[0])
        assert slope == pytest.approx(exponent(int(panel.title[-1])), abs=1e-4)
        assert stated[0] > max(line.error[0] for line in panel.lines)


def test_a_kernel_has_one_colour_in_every_chart():
    rates = colours(error_chart(rate_panels("density", RATES, SLOPES), COUNT, "MISE", "n", "t"))
    exact = colours(ratio_chart(ratio_panels(EXACT), "n", "t"))
    shared = rates.keys() & exact.keys()
    assert shared == {"sinc^1", "sinc^4", "sinc^6", "gaussian"}
    assert all(rates[kernel] == exact[kernel] for kernel in shared)
    assert len({rates[kernel] for kernel in shared}) == 4


def test_errors_by_correlation_are_in_order():
    for line in correlation_panel("density", RATES).lines:
        assert line.x == [0, 0.5, 0.8, 0.95]

"""The page in a real browser, light and dark, wide and narrow: drawn, readable, nothing on the console, nothing cut."""

import pytest

from fourierformer.provenance import MEASURED
from fourierformer.report import committed_sections, write_report
from fourierformer.results import collect
from tests.helpers.browser import layout, needs_browser, photograph
from tests.helpers.synthetic_runs import write_heads, write_run, write_vision_run

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Everything a page can hold: two experiments, a failed run, heads, rates of the estimators, times of kernels."""
    root = tmp_path_factory.mktemp("report")
    for seed in (1, 2, 3):
        write_heads(write_run(root / "runs", "softmax", seed, 60 + seed), [6 + seed / 10, 5])
        write_heads(write_run(root / "runs", "fourier", seed, 57 + seed), [7 + seed / 10, 6])
        write_vision_run(root / "runs", "softmax", seed, 92 + seed / 2, ema=True)
        write_vision_run(root / "runs", "fourier", seed, 93 + seed / 2, ema=True)
    name = "a-name-without-any-place-to-break-it-" * 4
    write_run(root / "runs", name, 1, changes={"notes": ["n" * 200], "experiment": "e" * 120})
    write_run(root / "runs", "gaussian", 1, state="failed", error="out of memory " + "x" * 150, traceback="T" * 200)
    return write_report(collect(root / "runs"), root / "report.html", committed_sections(MEASURED.glob("*.csv")))


@pytest.mark.full("a browser: tests/report/test_report.py reads the page as text")
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), pytest.param("dark", 500, marks=pytest.mark.full("a browser once more"))]
)
def test_page_renders(page, tmp_path, scheme, width):
    picture, log = photograph(page, tmp_path, scheme, width, height=4000)
    assert "CONSOLE" not in log
    background = picture[2, 2]
    assert background.mean() > 0.9 if scheme == "light" else background.mean() < 0.15
    ink = abs(picture - background).max(axis=2) > 0.3
    assert 0.005 < ink.mean() < 0.5  # neither blank nor flooded
    # ink in every tenth of the height: the charts are drawn too, not only the heading
    assert all(part.any() for part in (ink[i * 400 : (i + 1) * 400] for i in range(10)))
    # two series in two hues somewhere: orange has more red than blue, blue the other way round
    warm, cold = picture[..., 0] - picture[..., 2], picture[..., 2] - picture[..., 0]
    assert (warm > 0.35).sum() > 100
    assert (cold > 0.35).sum() > 100


@pytest.mark.full("a browser: tests/report/test_report.py reads the page as text")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_and_every_chart_has_a_size(page, tmp_path, width):
    found = layout(page, tmp_path, width)
    assert found["window"] == width
    assert found["outside"] == []
    assert found["page"] <= width
    assert len(found["charts"]) == page.read_text(encoding="utf-8").count("<figure") > 20
    assert all(chart_width > 200 and height > 60 for chart_width, height in found["charts"])
    assert len(found["anchors"]) >= 6
    assert all(found["anchors"])

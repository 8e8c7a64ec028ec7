"""Charts as files: every one as PNG and SVG, on white, in fixed colours, needing nothing from outside."""

import os
import re
import struct
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from test_report import two_by_three

from fourierformer.report import write_report
from fourierformer.report.curves import Curve, comparison_chart
from fourierformer.report.page import save_figures
from fourierformer.report.picture import SERIES, layer_colour
from fourierformer.report.runs import run_sections
from fourierformer.results import collect
from fourierformer.results.metrics import metric
from tests.helpers.synthetic_runs import write_heads, write_run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("figures")
    two_by_three(root / "runs")
    for run in (root / "runs").glob("*/*"):
        write_heads(run, [6.0, 5.0])
    save_figures(run_sections(collect(root / "runs")), root / "figures")
    return root / "figures"


def test_names_say_what_is_in_them(saved):
    where = "quickstart-lm-tiny-data-builtin-text"
    what = [
        "difference",
        "head-distance-per-layer-test",
        "radius",
        "rank-per-layer-test",
        "train-loss",
        "valid-ppl",
    ]
    assert sorted(path.name for path in saved.glob("*.svg")) == [f"{name}--{where}.svg" for name in what]
    assert {path.stem for path in saved.glob("*.png")} == {path.stem for path in saved.glob("*.svg")}


def test_svg_stands_alone(saved):
    for path in saved.glob("*.svg"):
        text = path.read_text()
        ElementTree.fromstring(text)
        assert not re.search(r"var\(|currentColor|color-mix|@import|<image|<text", text)
        links = re.findall(r'(?:href|src)="([^"]*)"', text)
        assert all(link.startswith("#") for link in links)
        assert "fill: #ffffff" in text  # the paper


def test_png_is_light_and_has_the_colours_of_its_series(saved):
    for path in saved.glob("*.png"):
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert width >= 700
        assert height >= (250 if path.name.startswith("difference") else 500)
        picture = matplotlib.image.imread(path)[..., :3]
        assert picture[0, 0].tolist() == [1, 1, 1]
        # softmax and Fourier, or the first and the last layer; one interval has one colour
        for colour in SERIES[: 0 if path.name.startswith("difference") else 2]:
            wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            assert (abs(picture - wanted).max(axis=2) < 0.02).sum() > 20, (path, colour)


def test_layers_have_colours_of_their_own():
    for count in (1, 2, 12, 16, 48):
        colours = [layer_colour(i, count) for i in range(count)]
        assert len({colour.fixed for colour in colours}) == count
    assert [layer_colour(i, 16).fixed for i in (0, 15)] == list(SERIES[:2])


def test_strange_names_are_drawn_as_they_are(tmp_path):
    write_run(tmp_path / "runs", "$x^$_<b>&../..", 1)
    save_figures(run_sections(collect(tmp_path / "runs")), tmp_path / "figures")
    names = [path.name for path in (tmp_path / "figures").iterdir()]
    assert len(names) == 4
    assert all(re.fullmatch(r"[a-z0-9-]+\.(png|svg)", name) for name in names)


@pytest.mark.parametrize("attentions", [1, 7])  # lines of one chart, a panel for each
def test_dollars_in_names_are_no_formulas(tmp_path, attentions):
    bad = r"$\frac$"  # as a formula of matplotlib an error
    for i, name in enumerate(["softmax", *(f"{bad}{i}" for i in range(attentions))]):
        rows = [{"step": step, f"valid_{bad}": 1.0 + step} for step in (1, 2)]
        write_run(tmp_path / "ppl", name, 1, 60.0 + i)
        write_run(tmp_path / "bad", name, 1, rows=rows, changes={"primary": bad, "experiment": "bad"})
    save_figures(run_sections(collect(tmp_path)), tmp_path / "figures")
    names = {path.name.partition("--")[0] for path in (tmp_path / "figures").iterdir()}
    assert names == {"difference", "train-loss", "valid-frac", "valid-ppl"}


def test_the_page_alone_writes_no_files(tmp_path):
    write_run(tmp_path / "runs", "softmax", 1)
    write_report(collect(tmp_path / "runs"), tmp_path / "page" / "report.html")
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["report.html"]


@pytest.mark.parametrize("backend", ["no_such_backend", pytest.param("svg", marks=pytest.mark.full("one that is"))])
def test_a_backend_that_is_not_installed_stops_no_picture(backend):
    """Jupyter exports one to every process that it starts; a valid one stays in force for windows."""
    program = """
import os
from fourierformer.report.picture import Picture, new_figure
assert "<svg" in Picture(new_figure("x", "y")[0], "name", "title", []).inline()
import matplotlib
print(os.environ["MPLBACKEND"], matplotlib.get_backend())
"""
    environment = os.environ | {"MPLBACKEND": backend}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    named, used = done.stdout.split()
    assert named == backend
    assert (used == backend) == (backend == "svg")


def test_long_names_of_panels_do_not_overlap():
    steps, values = np.arange(10.0), np.ones(10)
    name = "fourier lr=0.001 warmup_steps=200 feed_forward=swiglu"
    curves = [Curve(f"{name} seed={i}", steps, values, values, values, seeds=1, look=(i, 0)) for i in range(9)]
    figure = comparison_chart(curves, "name", "Training loss", metric("loss")).figure
    figure.canvas.draw()
    boxes = [axes.title.get_window_extent() for axes in figure.axes[:4]]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))

"""The chart of differences: where its points lie, and what an interval's colour says."""

import pytest

from fourierformer.report.charts import difference_chart
from fourierformer.report.runs import run_sections
from fourierformer.report.section import Charts
from fourierformer.results import collect
from fourierformer.results.statistics import Difference
from tests.helpers.synthetic_runs import write_run, write_vision_run


def chart_of(root):
    (section,) = run_sections(collect(root))
    return next(part for part in section.parts if isinstance(part, Charts)).pictures[0]


def test_points_and_intervals_lie_where_the_numbers_say():
    differences = [("a", Difference(-2.0, 1.5)), ("b", Difference(0.5, 1.0)), ("c", Difference(3.0))]
    picture = difference_chart(differences, "n", "t", "x")
    axes = picture.figure.axes[0]
    drawn = [line.get_xydata()[0].tolist() for line in axes.lines if len(line.get_xydata()) == 1]
    assert [-2.0, 0.0] in drawn
    assert [0.5, 1.0] in drawn
    assert [3.0, 2.0] in drawn
    ends = sorted(x for collection in axes.collections for path in collection.get_paths() for x in path.vertices[:, 0])
    assert ends == pytest.approx([-3.5, -0.5, -0.5, 1.5])
    assert [key.label for key in picture.keys] == [
        "95 % interval without 0",
        "95 % interval that holds 0",
        "no interval: one seed, or no variation",
    ]
    assert [key.point for key in picture.keys] == ["", "", "circle"]  # as it is drawn
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first line stands on top


@pytest.mark.parametrize(("mean", "said"), [(-2.0, "95 % interval without 0"), (0.5, "95 % interval that holds 0")])
def test_the_colour_of_an_interval_is_that_of_what_the_legend_says_about_it(mean, said):
    picture = difference_chart([("a", Difference(mean, 1.5))], "n", "t", "x")
    (key,) = picture.keys
    assert key.label == said
    assert picture.figure.axes[0].lines[0].get_color() == key.colour.fixed


def test_the_page_shows_the_number_that_a_paper_would_quote(tmp_path):
    for seed, base in ((1, 60.0), (2, 62.0), (3, 61.0)):
        write_run(tmp_path, "softmax", seed, base)
        write_run(tmp_path, "fourier", seed, base - seed)
    picture = chart_of(tmp_path)
    assert picture.title == "Perplexity against softmax (test sliding)"
    point = next(line for line in picture.figure.axes[0].lines if len(line.get_xydata()) == 1)
    assert point.get_xydata()[0][0] == pytest.approx(-0.9 * 2)  # sliding is 0.9 of segment; mean of 1, 2, 3
    assert "better is to the left" in picture.caption


def test_equal_results_lie_on_the_line_of_no_difference(tmp_path):
    for attention in ("softmax", "fourier"):
        for seed in (1, 2, 3):
            write_run(tmp_path, attention, seed, 61.0)
    picture = chart_of(tmp_path)
    picture.inline()
    assert picture.figure.axes[0].get_xlim() == (-1, 1)  # and not to 1e-17
    assert [key.label for key in picture.keys] == ["no interval: one seed, or no variation"]  # there are three seeds


def test_accuracies_are_better_to_the_right(tmp_path):
    for seed in (1, 2):
        write_vision_run(tmp_path, "softmax", seed, 93.0 + seed)
        write_vision_run(tmp_path, "fourier", seed, 94.0 + 2 * seed)
    picture = chart_of(tmp_path)
    assert picture.title == "Top-1 against softmax (valid best)"
    assert "better is to the right" in picture.caption


def test_without_softmax_there_is_nothing_to_draw(tmp_path):
    write_run(tmp_path, "fourier", 1, 60.0)
    (section,) = run_sections(collect(tmp_path))
    assert not any(
        p.title.endswith("against softmax") for part in section.parts if isinstance(part, Charts) for p in part.pictures
    )

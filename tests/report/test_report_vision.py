"""The page about image classifiers: accuracies in per cent, the highest first, averaged weights in a chart of their
own."""

import re

import numpy as np
import pytest
from test_report import Page

from fourierformer.report import render
from fourierformer.report.curves import Curve, comparison_chart, validation_metric
from fourierformer.report.runs import headline
from fourierformer.results import collect, comparison, tables
from fourierformer.results.metrics import metric, metric_text
from fourierformer.results.statistics import change_text
from tests.helpers.synthetic_runs import write_run, write_vision_run


def two_by_two(root, softmax=93.9, fourier=94.2, **keywords):
    for seed, offset in ((1, -0.5), (2, 0.5)):
        write_vision_run(root, "softmax", seed, softmax + offset, **keywords)
        write_vision_run(root, "fourier", seed, fourier + offset, **keywords)
    return tables(comparison(collect(root)))


def test_the_headline_names_the_highest_and_counts_in_points(tmp_path):
    (table,) = two_by_two(tmp_path)
    expected = "Highest valid top-1 (best): fourier with 94.20 %, against 93.90 % for softmax (+0.30 points); the same "
    expected += "difference with every seed: no test."
    assert headline(table) == expected


def test_where_softmax_wins_it_is_held_against_the_second(tmp_path):
    (table,) = two_by_two(tmp_path, softmax=95, fourier=94)
    assert "softmax with 95.00 %, against 94.00 % for fourier (+1.00 points)" in headline(table)


def test_equal_accuracies_are_called_equal(tmp_path):
    # 360 images: two runs with the same number of hits are nothing rare
    (table,) = two_by_two(tmp_path, softmax=95, fourier=95)
    assert headline(table) == "No difference in valid top-1 (best): softmax and fourier with 95.00 %."


def test_charts_of_a_classifier(tmp_path):
    two_by_two(tmp_path)
    html = render(collect(tmp_path), "today")
    words = Page(html).words
    for text in ("Training loss", "Validation top-1", "top-1 (%)", "Learned radius per layer"):
        assert text in words
    assert "The scale fits the last 75% of training." in words  # of accuracies; of losses the last 90 %
    assert "averaged weights" not in words
    assert not re.search(r"perplexity|\btokens?\b|\bppl\b", words)
    assert "valid top-1 93.70 % (best)" in words  # of one run, in the list of all


def test_averaged_weights_have_a_chart_and_lines_of_their_own(tmp_path):
    two_by_two(tmp_path, ema=True)
    html = render(collect(tmp_path), "today")
    assert "Validation top-1, averaged weights" in Page(html).words
    table, intervals = re.findall(r"<tbody>.*?</tbody>", html, re.DOTALL)[:2]
    assert table.count('<tr class="start">') == 3  # last, ema best and ema last begin a block each
    assert intervals.count('<tr class="start">') == 1  # the second attention


def test_both_tasks_on_one_page_have_ids_of_their_own(tmp_path):
    two_by_two(tmp_path, ema=True)
    write_run(tmp_path, "fourier", 1)
    found = Page(render(collect(tmp_path), "today"))
    assert len(found.ids) == len(set(found.ids))
    assert "Validation perplexity" in found.words
    assert "Validation top-1" in found.words


def test_an_accuracy_is_found_where_no_summary_names_the_metric(tmp_path):
    write_vision_run(tmp_path, "fourier", 1, state="interrupted")
    assert validation_metric(comparison(collect(tmp_path)), "") == "top1"


def labels(svg: str) -> list[float]:
    return [float(text) for text in re.findall(r">(\d+(?:\.\d+)?)</text>", svg)]


def test_the_scale_of_an_accuracy_leaves_out_how_it_rose():
    steps = np.arange(10, 101, 10)
    values = np.array([10.0, 40, 70, 90, 91, 92, 93, 93.5, 94, 94.2])  # 70 % at step 30, beyond the first quarter
    curve = Curve("softmax", steps, values, values, values, seeds=1)
    svg = comparison_chart([curve], "name", "Validation top-1", metric("top1")).inline()
    vertical = svg[svg.index('id="name-matplotlib.axis_2"') :]
    assert min(labels(vertical)) >= 68  # 70 - 0.05 * (94.2 - 70) = 68.8
    assert 90 <= max(labels(vertical)) <= 96


@pytest.mark.parametrize(
    ("key", "text", "change"),
    [
        ("top1", "1.50 %", "+0.50 points"),
        ("top5", "1.50 %", "+0.50 points"),
        ("ppl", "1.50", "+50.0%"),
        ("bpc", "1.5000", "+50.0%"),
        ("unheard_of", "1.500", "+50.0%"),
    ],
)
def test_how_metrics_are_written(key, text, change):
    assert metric_text(1.5, key, unit=True) == text
    assert change_text(1.5, 1.0, key) == change

"""The report is one file that needs nothing from outside, escapes what it did not write, and says what is missing."""

import json
import math
import re
import statistics
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fourierformer.report import render, write_report
from fourierformer.report.curves import STRETCHES, diagnostic_curves, metric_curves, time_curves
from fourierformer.report.page import commands, origin
from fourierformer.report.runs import headline
from fourierformer.results import collect, comparison, tables
from scripts import report
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import evaluation, metric_rows, write_heads, write_run

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Collects what the assertions ask for, and fails on a tag that is closed out of order."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.ids, self.text, self.attributes = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def page(root: Path) -> Page:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a matplotlib warning here is a broken picture
        return Page(render(collect(root), "today"))


def two_by_three(root: Path) -> None:
    for seed in (1, 2, 3):
        write_run(root, "softmax", seed, 60 + seed)
        write_run(root, "fourier", seed, 57 + seed)


def test_nothing_is_loaded_from_outside(tmp_path):
    two_by_three(tmp_path)
    path = write_report(collect(tmp_path), tmp_path / "out" / "report.html")
    html = path.read_text(encoding="utf-8")
    found = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(found.tags)
    assert not re.search(r"https?:|@import|@font-face", html)
    links = [value for name, value in found.attributes if name in ("src", "href", "xlink:href", "srcset")]
    assert all(value.startswith("#") for value in links)
    assert {value[1:] for value in links} <= set(found.ids)
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


def test_ids_are_unique_and_references_resolve(tmp_path):
    two_by_three(tmp_path)
    html = render(collect(tmp_path), "today")
    found = Page(html)
    assert len(found.ids) == len(set(found.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(found.ids)
    named = [value for name, value in found.attributes if name == "aria-labelledby"]
    assert len(named) == html.count('role="img"') == 4  # difference, loss, perplexity, radius of the Fourier row
    assert set(named) <= set(found.ids)


def test_pictures_take_their_colours_from_the_page(tmp_path):
    two_by_three(tmp_path)
    html = render(collect(tmp_path), "today")
    body = html[html.index("<body>") :]
    assert "currentColor" in body
    assert "var(--series-0" in body
    # a fixed colour may only stand as the fallback of a variable: anything else is unreadable in one of the two modes
    assert not re.search(r"#[0-9a-f]{6}", re.sub(r"var\(--series-\d, #[0-9a-f]{6}\)", "", body))
    assert "prefers-color-scheme: dark" in html
    defined = set(re.findall(r"(--series-\d):", html))
    assert set(re.findall(r"var\((--series-\d)", body)) <= defined


def test_the_table_shows_mean_and_sd_and_marks_the_best(tmp_path):
    two_by_three(tmp_path)
    html = render(collect(tmp_path), "today")
    sd = statistics.stdev([58, 59, 60])
    assert re.search(rf'class="[^"]*\bbest\b[^"]*">59\.00 ± {sd:.2f}<', html)
    assert re.search(rf'<td class="">62\.00 ± {sd:.2f}<', html)
    assert "test, sliding: context 64, stride 1, 21,000 tokens scored" in html
    assert "not comparable with WikiText" in html


def test_headline_states_the_difference_to_softmax(tmp_path):
    two_by_three(tmp_path)
    (table,) = tables(comparison(collect(tmp_path)))
    expected = "Lowest test perplexity (sliding): fourier with 53.10, against 55.80 for softmax (-4.8%); the same "
    expected += "difference with every seed: no test."
    assert headline(table) == expected  # 0.9 * 59, 0.9 * 62, 59 / 62 - 1 = -4.84 %


def test_headline_makes_no_claim_from_one_seed_and_none_across_protocols(tmp_path):
    write_run(tmp_path, "softmax", 1, 61)
    write_run(tmp_path, "fourier", 1, 58)
    assert "a single seed, so no claim yet" in headline(*tables(comparison(collect(tmp_path))))
    other = tmp_path / "other"
    write_run(other, "softmax", 1, changes={"results": {"test": {"segment": evaluation(61)}}})
    write_run(other, "fourier", 1, changes={"results": {"test": {"segment": evaluation(58, tokens=5)}}})
    assert headline(*tables(comparison(collect(other)))) == ""


def test_a_failed_run_shows_its_error_and_traceback(tmp_path):
    two_by_three(tmp_path)
    write_run(tmp_path, "gaussian", 1, state="failed", error="out of memory", traceback="Traceback: line <3>", step=70)
    words = page(tmp_path).words
    for text in (
        "1 failed",
        "out of memory",
        "Traceback: line <3>",
        "last step 70 of 600",
        "run that did not complete",
    ):
        assert text in words


def test_hostile_names_and_errors_stay_text(tmp_path):
    evil = '<script>alert(1)</script>"&$x$'
    changes = {"attention": evil, "notes": [evil], "experiment": evil, "data": evil}
    path = write_run(tmp_path, "fourier", 1, changes=changes)
    write_run(tmp_path, "softmax", 1, state="failed", error=evil, traceback=evil)
    (path / "meta.json").write_text('{"command": "</code><script>", "commit": "<b>", "versions": {"<i>": "<u>"}}')
    found = page(tmp_path)
    assert not {"script", "b", "i", "u"} & set(found.tags)
    assert evil in found.words


def test_names_of_a_metric_and_of_a_split_stay_text(tmp_path):
    evil = 'x"><script>alert(1)</script>'
    rows = [{"step": step, f"valid_{evil}": 1.0 + step, "seconds": step} for step in (1, 2)]
    changes = {"primary": evil, "results": {"test": {evil: {evil: 2.0}}}}
    for attention in ("softmax", "fourier"):
        write_heads(write_run(tmp_path, attention, 1, rows=rows, changes=changes), [1.0, 2.0], split=evil)
    found = page(tmp_path)
    assert len([tag for tag in found.tags if tag == "figure"]) == 4  # over steps, over seconds, distances, ranks
    assert "script" not in found.tags


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, 1e300])
def test_numbers_that_are_not_finite_leave_gaps(tmp_path, bad):
    rows = [{"step": step, "train_loss": bad if step > 50 else 5.0} for step in range(1, 101)]
    rows += [{"step": 50, "valid_ppl": 100.0, "radius/00": 2.0}, {"step": 100, "valid_ppl": bad, "radius/00": bad}]
    write_run(tmp_path, "fourier", 1, rows=rows)
    assert "Training loss" in page(tmp_path).words
    if bad != 1e300:
        (curve,), _ = metric_curves(comparison(collect(tmp_path)), "train_loss")
        assert np.isnan(curve.middle).sum() == 50


def test_nothing_but_nan_still_makes_a_page(tmp_path):
    rows = [{"step": step, "train_loss": None, "valid_ppl": None} for step in (1, 2, 3)]
    write_run(tmp_path, "fourier", 1, state="diverged", rows=rows, error="non-finite loss 10 times in a row")
    assert "non-finite loss 10 times in a row" in page(tmp_path).words


def test_one_run_alone(tmp_path):
    found = page(write_run(tmp_path, "fourier", 1, 60.0))
    assert "1 completed" in found.words
    assert "Lowest" not in found.words


def test_no_evaluation_rows_no_radius_no_metrics(tmp_path):
    write_run(tmp_path / "a", "fourier", 1, rows=[{"step": 1, "train_loss": 5.0}])
    write_run(tmp_path / "b", "fourier", 1, rows=[])
    assert "svg" in page(tmp_path / "a").tags
    assert "Validation" not in page(tmp_path / "a").words
    assert "Learned radius" not in page(tmp_path / "a").words
    assert "svg" not in page(tmp_path / "b").tags


def test_damaged_and_bare_directories_are_listed(tmp_path):
    (write_run(tmp_path, "fourier", 1) / "summary.json").write_text('{"torn')
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("seed: 1\n")
    words = page(tmp_path).words
    assert "summary.json cannot be read" in words
    assert "1 unfinished" in words
    assert "bare" in words


def test_no_runs_make_a_page_that_says_so():
    assert "no runs" in Page(render([], "today")).words


def test_the_band_spans_the_seeds_and_the_line_is_their_mean(tmp_path):
    values = {1: 5.0, 2: 6.0, 3: 10.0}
    for seed, value in values.items():
        write_run(tmp_path, "fourier", seed, rows=[{"step": step, "train_loss": value + step} for step in (1, 2, 3)])
    (curve,), width = metric_curves(comparison(collect(tmp_path)), "train_loss")
    assert (width, curve.seeds) == (0, 3)
    assert curve.middle.tolist() == [8, 9, 10]
    assert curve.low.tolist() == [6, 7, 8]
    assert curve.high.tolist() == [11, 12, 13]


def test_a_run_that_died_has_its_own_curve_and_moves_no_mean(tmp_path):
    write_run(tmp_path, "fourier", 1, rows=[{"step": step, "train_loss": 5.0} for step in range(10)])
    write_run(tmp_path, "fourier", 2, state="diverged", rows=[{"step": step, "train_loss": 99.0} for step in range(5)])
    done, died = metric_curves(comparison(collect(tmp_path)), "train_loss")[0]
    assert (done.finished, died.finished) == (True, False)
    assert set(done.middle) == {5.0}
    assert len(died.steps) == 5


@pytest.mark.parametrize("steps", [STRETCHES + 1, 1000, 10_000])
def test_long_logs_are_thinned_to_means_that_keep_the_line(tmp_path, steps):
    # the mean of a straight line over a stretch is the line at its middle; only the last point takes in the rest
    write_run(tmp_path, "fourier", 1, rows=[{"step": step, "train_loss": float(step)} for step in range(1, steps + 1)])
    (curve,), width = metric_curves(comparison(collect(tmp_path)), "train_loss")
    assert width == math.ceil(steps / STRETCHES)
    assert len(curve.steps) == steps // width <= STRETCHES
    assert curve.middle[:-1] == pytest.approx(curve.steps[:-1] + 0.5)
    assert curve.steps[-1] <= steps


def test_validation_is_drawn_against_time_where_times_were_logged(tmp_path):
    """Fourier's steps take 20 s with one seed and 40 s with the other, softmax's 15: in minutes 30 at step 60."""

    def rows(seconds: float, key: str = "seconds") -> list[dict]:
        return [{"step": step, "valid_ppl": 100.0 - step, key: seconds * step} for step in (30, 60)]

    for seed, pace in ((1, 20.0), (2, 40.0)):
        write_run(tmp_path / "with", "fourier", seed, rows=rows(pace))
        write_run(tmp_path / "with", "softmax", seed, rows=rows(15.0))
    softmax, fourier = time_curves(comparison(collect(tmp_path / "with")), "valid_ppl")
    assert (softmax.steps.tolist(), fourier.steps.tolist()) == ([450, 900], [900, 1800])
    assert fourier.middle.tolist() == [70, 40]
    found = page(tmp_path / "with").words
    assert "Validation perplexity against training time" in found
    assert "training time (minutes)" in found
    for seed in (1, 2):
        write_run(tmp_path / "partly", "softmax", seed, rows=rows(15.0))
        write_run(tmp_path / "partly", "fourier", seed, rows=rows(20.0, "seconds" if seed == 1 else "another"))
    assert [curve.label for curve in time_curves(comparison(collect(tmp_path / "partly")), "valid_ppl")] == ["softmax"]
    assert "against training time" not in page(tmp_path / "partly").words


def test_radius_has_one_curve_per_layer_in_order(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path, "fourier", seed, rows=metric_rows(60, "fourier"))
    (row,) = comparison(collect(tmp_path))
    first, second = diagnostic_curves(row, "radius")
    assert (first.label, second.label) == ("00", "01")
    assert first.middle[-1] == pytest.approx(2 - 0.6)
    assert second.middle[-1] == pytest.approx(2 + 0.6)


def test_the_attended_share_is_drawn_where_it_was_logged(tmp_path):
    rows = [
        {"step": step, "valid_ppl": 100.0, "attended_share/00": 0.4, "attended_share/01": 0.0} for step in (50, 100)
    ]
    write_run(tmp_path / "with", "fourier", 1, rows=rows)
    write_run(tmp_path / "without", "fourier", 1)
    assert "Attended share of the last query, per layer: sum w / (eps + sum w)" in page(tmp_path / "with").words
    assert "Attended share" not in page(tmp_path / "without").words


def test_origin_names_every_value_where_runs_differ(tmp_path):
    write_run(tmp_path, "fourier", 1)
    other = write_run(tmp_path, "softmax", 1)
    (other / "meta.json").write_text(
        '{"commit": "ffff", "dirty": true, "versions": {"torch": "2.15.0"}, "gpus": ["H", "H"]}'
    )
    facts = dict(origin(collect(tmp_path)))
    assert facts["torch"] == "2.11.0 (1 of 2 runs); 2.15.0 (1 of 2 runs)"
    assert "uncommitted changes" in facts["commit"]
    assert "2 x H" in facts["GPU"]


def test_a_sweep_is_one_command(tmp_path):
    two_by_three(tmp_path)
    for path in tmp_path.glob("*/*/meta.json"):
        path.write_text('{"command": "python train_lm.py sweep=quickstart"}')
    assert commands(collect(tmp_path)) == [("python train_lm.py sweep=quickstart", 6)]


def test_all_combinations_of_values_are_one_sweep(tmp_path):
    two_by_three(tmp_path)
    runs = collect(tmp_path)
    assert commands(runs) == [("python train_lm.py attention=fourier,softmax seed=1,2,3 -m", 6)]
    lacking = [run for run in runs if (run.field("attention"), run.field("seed")) != ("softmax", 3)]
    assert commands(lacking) == [
        ("python train_lm.py attention=fourier seed=1,2,3 -m", 3),
        ("python train_lm.py attention=softmax seed=1,2 -m", 2),
    ]


def test_values_that_the_shell_or_hydra_would_split_stay_whole(tmp_path):
    for seed in (1, 2):
        run = write_run(tmp_path, "fourier", seed)
        command = f"python train_lm.py --config-dir /a=b 'attention.pattern=[a,b c]' seed={seed}"
        (run / "meta.json").write_text(json.dumps({"command": command}))
    text = "python train_lm.py --config-dir /a=b 'attention.pattern=[a,b c]' seed=1,2 -m"
    assert commands(collect(tmp_path)) == [(text, 2)]


@pytest.mark.parametrize("option", ["--config-dir=/{}", "--config-dir /x={}"])
def test_commands_of_two_folders_of_configs_are_two(tmp_path, option):
    lines = [f"python train_lm.py {option.format(folder)} seed=1" for folder in "ab"]
    for seed, command in enumerate(lines):
        run = write_run(tmp_path, "fourier", seed)
        (run / "meta.json").write_text(json.dumps({"command": command}))
    assert commands(collect(tmp_path)) == [(line, 1) for line in lines]


def test_runs_that_differ_in_a_setting_are_listed_with_it(tmp_path):
    for rate in (0.001, 0.002):
        write_run(tmp_path / str(rate), "fourier", changes={"config": {"optim.lr": rate}, "group": str(rate)})
    listed = page(tmp_path).words.split("All runs")[-1]
    assert "fourier lr=0.001 0.001/quickstart/lm_tiny-fourier-s1-" in listed
    assert "fourier lr=0.002 0.002/quickstart/lm_tiny-fourier-s1-" in listed


def test_headline_holds_the_best_against_softmax_where_another_attention_is_second(tmp_path):
    two_by_three(tmp_path)
    for seed in (1, 2, 3):
        write_run(tmp_path, "gaussian", seed, 58 + seed)  # 0.9 * 60 = 54 on average, before softmax's 55.8
    assert "fourier with 53.10, against 55.80 for softmax" in headline(*tables(comparison(collect(tmp_path))))


@pytest.mark.parametrize(("offsets", "doubt"), [((0, 9, -8), "; undecided: finds "), ((0, 0.1, 0.2), "; p = ")])
def test_headline_says_what_the_test_found(tmp_path, offsets, doubt):
    for seed, offset in enumerate(offsets, 1):
        write_run(tmp_path, "softmax", seed, 61)
        write_run(tmp_path, "fourier", seed, 58 + offset)
    assert doubt in headline(*tables(comparison(collect(tmp_path))))


def test_script_writes_where_it_is_told_and_says_where(tmp_path, monkeypatch, capsys):
    two_by_three(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["report.py", "--out", "here.html", "--figures", "elsewhere"])
    report.main()
    printed, error = capsys.readouterr()
    assert printed.strip() == "here.html"
    assert error == ""
    Page((tmp_path / "here.html").read_text(encoding="utf-8"))
    names = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert "train-loss--quickstart-lm-tiny-data-builtin-text.png" in names
    assert not any("estimators" in name or "kernel" in name for name in names)  # nobody named them
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "here.html", "runs"]


@pytest.mark.full("draws every figure once more")
def test_script_writes_beside_the_runs_when_not_told(tmp_path):
    two_by_three(tmp_path / "runs")
    command = [sys.executable, str(REPOSITORY / "scripts" / "report.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "runs/report.html"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert len(list((tmp_path / "runs" / "figures").glob("train-loss--*"))) == 2


def test_a_page_of_several_runs_does_not_replace_the_page_of_the_first(tmp_path, monkeypatch, capsys):
    runs = [str(write_run(tmp_path, attention, 1)) for attention in ("fourier", "softmax")]
    monkeypatch.setattr("fourierformer.report.write_report", lambda runs, out, *_, **__: out)  # drawing takes seconds
    monkeypatch.setattr(sys, "argv", ["report.py", *runs])
    report.main()
    assert Path(capsys.readouterr().out.strip()) == Path(runs[0]).parent / "report.html"
    monkeypatch.setattr(sys, "argv", ["report.py", runs[0]])
    report.main()
    assert Path(capsys.readouterr().out.strip()) == Path(runs[0]) / "report.html"


def test_script_says_when_it_cannot_write(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "runs", "fourier", 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["report.py", "--out", "runs"])
    with pytest.raises(SystemExit) as end:
        report.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: --out runs is a directory: name the file to write\n"


def test_headline_says_that_two_kernels_were_not_tested_and_that_attention_is_off(tmp_path):
    for seed in (1, 2, 3):
        off = write_run(tmp_path, "fourier", seed, 58 + seed)
        (off / "heads.json").write_text(json.dumps({"splits": {"test": {"layers": [], "mean": {"rank": 0.4}}}}))
        write_run(tmp_path, "gaussian", seed, 61 + seed**2)
    said = headline(*tables(comparison(collect(tmp_path))))
    assert "; not tested against each other. But fourier: on average over the layers the rank of the att" in said
    assert "maps is 0.4: in some layers attention.eps dominates the denominator." in said

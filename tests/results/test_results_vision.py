"""Runs of image classification in, tables out: higher is better, each kind of weights stands for itself."""

import json
import statistics

import pytest

from fourierformer.results import collect, comparison, markdown_of, render_text, tables
from tests.helpers.synthetic_runs import classification, write_run, write_vision_run

SOFTMAX, FOURIER = [92.5, 93.1, 93.4], [93.3, 93.9, 93.0]


def lines(table) -> dict[tuple[str, str], dict[str, str]]:
    """The cells of a table by (attention, weights) and column."""
    named = [dict(zip(table.header, line, strict=True)) for line in table.body]
    return {(line["attention"], line["weights"]): line for line in named}


def text_of(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


@pytest.fixture
def rows(tmp_path):
    for seed, (softmax, fourier) in enumerate(zip(SOFTMAX, FOURIER, strict=True), 1):
        write_vision_run(tmp_path, "softmax", seed, softmax, ema=True)
        write_vision_run(tmp_path, "fourier", seed, fourier)
    return comparison(collect(tmp_path))


def test_mean_and_sd_of_both_accuracies_for_every_weights(rows):
    (table,) = tables(rows)
    found = lines(table)
    assert found["softmax", "best"]["valid top-1 %"] == text_of(SOFTMAX)
    assert found["softmax", "best"]["valid top-5 %"] == text_of([(100 + value) / 2 for value in SOFTMAX])
    assert found["fourier", "last"]["valid top-1 %"] == text_of([value - 0.5 for value in FOURIER])
    assert found["softmax", "ema best"]["valid top-1 %"] == text_of([value + 0.25 for value in SOFTMAX])
    assert list(found) == [
        *(("softmax", "best"), ("fourier", "best"), ("softmax", "last"), ("fourier", "last")),
        *(("softmax", "ema best"), ("softmax", "ema last")),  # the Fourier runs kept no averages: no empty lines
    ]
    assert table.starts == {2, 4, 5}


def test_the_highest_is_the_best_among_the_same_weights_only(rows):
    (table,) = tables(rows)
    marked = {(table.body[i][0], table.body[i][1], table.header[j]) for i, j in table.best}
    both = ("valid top-1 %", "valid top-5 %")
    # averaged weights have the highest numbers of all, but no rival
    assert marked == {("fourier", weights, column) for weights in ("best", "last") for column in both}
    assert f"{text_of(FOURIER)} *" in render_text(rows)
    assert "* best of its column for the same weights\n" in render_text(rows)
    assert f"**{text_of(FOURIER)}**" in markdown_of(tables(rows))


def test_the_best_of_averaged_weights_is_marked_where_not_all_have_them(tmp_path):
    for attention, top1, ema in (("softmax", 92.0, True), ("fourier", 93.0, False), ("gaussian", 94.0, True)):
        write_vision_run(tmp_path, attention, 1, top1, ema=ema)
    (table,) = tables(comparison(collect(tmp_path)))
    assert {(table.body[i][0], table.body[i][1]) for i, _ in table.best} == {
        ("gaussian", weights) for weights in ("best", "last", "ema best", "ema last")
    }


def test_speed_waiting_and_size_stand_once_per_configuration(rows):
    (table,) = tables(rows)
    found = lines(table)
    quantities = ("parameters", "images/s", "data wait", "train time", "state")
    expected = ["2,692,426", "412", "3 %", "1 min 33 s", "done"]
    assert [found["fourier", "best"][name] for name in quantities] == expected
    assert {found["fourier", "last"][name] for name in quantities} == {""}
    assert not any("token" in line for line in render_text(rows).splitlines())


def test_lines_say_what_was_scored_with_which_weights(rows):
    (table,) = tables(rows)
    assert [line.split(": ")[0] for line in table.protocols] == [
        "valid, best",
        "valid, last",
        "valid, ema best",
        "valid, ema last",
    ]
    best, last, *averaged = table.protocols
    assert best == (
        "valid, best: 360 images scored; the highest valid top-1 of any evaluation, chosen on the validation set itself"
    )
    assert last == "valid, last: 360 images scored; the end of training"
    assert all("averaged weights" in line for line in averaged)


def test_another_number_of_images_is_said_and_nothing_is_best(tmp_path):
    write_vision_run(tmp_path, "softmax", 1, 93)
    part = {"valid": {"best": classification(99, images=100), "last": classification(90)}}
    write_vision_run(tmp_path, "fourier", 1, changes={"results": part})
    (table,) = tables(comparison(collect(tmp_path)))
    best, last = table.protocols
    assert "100 images scored; 360 images scored (DIFFERS between rows: not comparable)" in best
    assert "DIFFERS" not in last
    assert {table.body[i][1] for i, _ in table.best} == {"last"}


@pytest.mark.parametrize(("data", "note"), [("builtin_images", True), ("cifar10", False), ("imagenet", False)])
def test_only_the_embedded_digits_are_not_comparable(tmp_path, data, note):
    write_vision_run(tmp_path, "softmax", 1, 93, changes={"data": data})
    text = render_text(comparison(collect(tmp_path)))
    assert ("built-in digits: not comparable" in text) == note
    assert "WikiText" not in text


def test_three_seeds_and_all_weights_fit_on_a_screen(tmp_path):
    for seed in (1, 2, 3):
        for attention in ("softmax", "fourier", "generalized_fourier"):
            write_vision_run(tmp_path, attention, seed, 93 + seed / 10, ema=True)
    text = render_text(comparison(collect(tmp_path)))
    assert max(map(len, text.splitlines())) <= 120
    assert sum("±" in line and "softmax" in line for line in text.splitlines()) == 4


def test_a_seed_without_averages_shows_in_that_cell(tmp_path):
    write_vision_run(tmp_path, "softmax", 1, 93.0, ema=True)
    write_vision_run(tmp_path, "softmax", 2, 94.0)
    (table,) = tables(comparison(collect(tmp_path)))
    assert lines(table)["softmax", "ema last"]["valid top-1 %"] == "92.75 (n 1)"


def test_a_run_that_failed_has_the_columns_of_its_task(tmp_path):
    path = write_vision_run(tmp_path, "softmax", 1, state="failed", error="out of memory")
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"primary": "top1"}))
    (table,) = tables(comparison(collect(tmp_path)))
    line = lines(table)["softmax", "best"]
    assert {line[name] for name in ("valid top-1 %", "valid top-5 %", "images/s", "data wait")} == {"-"}
    assert line["state"] == "failed"
    assert any("out of memory" in note for note in table.notes)


def test_a_summary_without_the_share_of_waiting_has_a_dash(tmp_path):
    write_vision_run(tmp_path, "softmax", 1, 93, changes={"data_wait": None})
    (table,) = tables(comparison(collect(tmp_path)))
    assert lines(table)["softmax", "best"]["data wait"] == "-"


def test_language_and_vision_stand_in_tables_of_their_own(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    write_vision_run(tmp_path, "softmax", 1, 93)
    words, images = tables(comparison(collect(tmp_path)))
    assert (words.primary, images.primary) == ("ppl", "top1")
    assert "tokens/s" in words.header
    assert not {"weights", "data wait", "images/s"} & set(words.header)


def test_every_markdown_line_has_the_same_number_of_cells(rows):
    grid = [line for line in markdown_of(tables(rows)).splitlines() if line.startswith("|")]
    assert len(grid) == 2 + 6
    assert {line.count("|") for line in grid} == {11}  # 10 columns

"""Runs in, tables out: what is averaged is right, what is missing is a dash, what cannot be used is named."""

import json
import math
import os
import re
import statistics
import subprocess
import sys

import pytest

from fourierformer.errors import SetupError
from fourierformer.results import collect, comparison, markdown_of, render_text, tables
from fourierformer.results.labels import differing_values, labels_of_runs, row_label
from fourierformer.results.tables import duration_text
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import evaluation, write_run, write_vision_run


def test_mean_and_sd_over_seeds(tmp_path):
    values = [61.2, 60.1, 63.7, 59.9, 60.4]
    for seed, value in enumerate(values, 1):
        write_run(tmp_path, "softmax", seed, value)
    (row,) = comparison(collect(tmp_path))
    cell = row.cell(("test", "segment"))
    assert row.n == cell.n == 5
    assert cell.mean == pytest.approx(statistics.fmean(values))
    assert cell.sd == pytest.approx(statistics.stdev(values))
    assert cell.values == dict(enumerate(values, 1))  # kept by seed, for tests that pair them
    assert f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" in render_text([row])


def test_one_seed_has_no_sd_and_no_claim(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    write_run(tmp_path, "fourier", 1, 58.3)
    text = render_text(comparison(collect(tmp_path)))
    assert "±" not in text
    assert "n = 1: one seed supports no claim" in text


def test_best_is_marked_once_per_column_and_never_for_a_lone_row(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    (alone,) = tables(comparison(collect(tmp_path)))
    assert alone.best == set()
    write_run(tmp_path, "fourier", 1, 58.3)
    (both,) = tables(comparison(collect(tmp_path)))
    assert [row.attention for row in both.rows] == ["softmax", "fourier"]  # the baseline stands on top
    assert {both.body[i][j] for i, j in both.best} == {"58.30", "52.47"}
    assert "**58.30**" in markdown_of(tables(comparison(collect(tmp_path))))
    assert "58.30 *" in render_text(comparison(collect(tmp_path)))


def test_each_model_has_its_own_best(tmp_path):
    for model, ppl in (("lm_tiny", 60.0), ("lm_small", 40.0)):
        for attention, less in (("softmax", 0.0), ("fourier", 2.0)):
            changes = {"model": model, "group": f"{model} {attention}"}
            write_run(tmp_path / model, attention, 1, ppl - less, changes=changes)
    (table,) = tables(comparison(collect(tmp_path)))
    column = table.header.index("test ppl\nsegment")
    assert sorted(table.body[i][column] for i, j in table.best if j == column) == ["38.00", "58.00"]


def test_the_difference_in_a_table_is_that_of_the_test_set(tmp_path):
    for attention, valid, test in (("softmax", 60.0, 50.0), ("fourier", 61.0, 48.0)):
        results = {"valid": {"segment": evaluation(valid)}, "test": {"segment": evaluation(test)}}
        write_run(tmp_path, attention, 1, changes={"results": results})
    (table,) = tables(comparison(collect(tmp_path)))
    assert table.differences == ["", "-2.00"]


def test_a_mean_over_the_seeds_that_have_a_value_is_not_the_best(tmp_path):
    """A recall that fails with most seeds has "steps to 95 %" of the others alone."""
    for seed in (1, 2):
        write_run(tmp_path, "softmax", seed, 61.2)
    write_run(tmp_path, "fourier", 1, 58.3)
    write_run(tmp_path, "fourier", 2, 58.3, changes={"results": {"valid": {"segment": evaluation(58.3)}}})
    (table,) = tables(comparison(collect(tmp_path)))
    assert {table.header[column] for _, column in table.best} == {"valid ppl\nsegment"}


def test_missing_cell_is_a_dash_and_other_cells_stay(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    write_run(
        tmp_path, "fourier", 1, 58.3, changes={"results": {"valid": {"segment": evaluation(58.3)}}, "parameters": None}
    )
    (table,) = tables(comparison(collect(tmp_path)))
    line = dict(zip(table.header, table.body[1], strict=True))
    assert line["valid ppl\nsegment"] == "58.30"
    assert line["test ppl\nsegment"] == line["test ppl\nsliding"] == line["parameters"] == "-"


def test_a_seed_without_one_evaluation_shows_in_that_cell(tmp_path):
    write_run(tmp_path, "softmax", 1, 60.0)
    write_run(tmp_path, "softmax", 2, 62.0, changes={"results": {"valid": {"segment": evaluation(62.0)}}})
    assert "54.00 (n 1)" in render_text(comparison(collect(tmp_path)))


@pytest.mark.parametrize("state", ["failed", "diverged", "interrupted", "running"])
def test_unfinished_runs_are_named_with_their_state(tmp_path, state):
    write_run(tmp_path, "fourier", 1, 58.3)
    path = write_run(tmp_path, "fourier", 2, state=state, step=120, error="out of memory")
    text = render_text(comparison(collect(tmp_path)))
    assert f"1 of 2 done, 1 {state}" in text
    assert f"{path.name}: {state}; out of memory; last step 120 of 600" in text
    assert "58.30" in text


def test_the_old_numbers_of_a_run_that_trains_again_do_not_count(tmp_path):
    write_run(tmp_path, "fourier", 1, 58.3)
    path = write_run(tmp_path, "fourier", 2, 58.3)
    (path / "status.json").write_text(json.dumps({"state": "running", "step": 300, "steps": 600}))
    (row,) = comparison(collect(tmp_path))
    assert (row.n, row.state) == (1, "1 of 2 done, 1 running")


def test_only_failures_still_make_a_row(tmp_path):
    write_run(tmp_path, "fourier", 1, state="failed", error="boom")
    text = render_text(comparison(collect(tmp_path)))
    assert "fourier" in text
    assert "failed; boom" in text


def test_a_failed_run_is_not_blamed_on_another_configuration(tmp_path):
    write_run(tmp_path, "fourier", 1, 58.3)
    path = write_run(tmp_path, "fourier", 2, state="failed")
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"group": "another"}))
    rows = comparison(collect(tmp_path))
    assert sorted((row.n, row.state) for row in rows) == [(0, "failed"), (1, "done")]
    assert len(tables(rows)) == 1  # same experiment, hence same data: one table


def test_a_run_that_may_be_of_either_configuration_is_blamed_on_none(tmp_path):
    for group in ("one", "two"):
        write_run(tmp_path / group, "fourier", 1, changes={"group": group})
    write_run(tmp_path, "fourier", 2, state="failed")
    rows = comparison(collect(tmp_path))
    assert sorted((row.n, row.state) for row in rows) == [(0, "failed"), (1, "done"), (1, "done")]


def test_a_failed_run_is_of_unknown_data_where_its_experiment_has_several(tmp_path):
    for data in ("builtin_text", "wikitext2"):
        write_run(tmp_path / data, "softmax", 1, changes={"data": data, "group": data})
    write_run(tmp_path, "fourier", 1, state="failed")
    rows = comparison(collect(tmp_path))
    assert sorted((row.attention, row.data) for row in rows) == [
        ("fourier", ""),
        ("softmax", "builtin_text"),
        ("softmax", "wikitext2"),
    ]


@pytest.mark.parametrize("name", ["summary.json", "status.json"])
@pytest.mark.parametrize("content", [b'{"state": "comp', b"", b"[1, 2]", b"\xff\xfe\x00"])
def test_torn_and_foreign_files_are_named(tmp_path, name, content):
    path = write_run(tmp_path)
    (path / name).write_bytes(content)
    (run,) = collect(tmp_path)
    assert run.state == "damaged"
    assert any(name in remark for remark in run.remarks())
    text = render_text(comparison([run]))
    assert name in text
    assert "60.00" not in text


@pytest.mark.parametrize("content", [b'{"commit": "01', b"[1, 2]", b'{"commit": 7}'])
def test_without_their_origin_the_numbers_still_stand(tmp_path, content):
    (write_run(tmp_path) / "meta.json").write_bytes(content)
    (run,) = collect(tmp_path)
    assert (run.state, run.meta) == ("completed", {})
    assert any("meta.json" in remark for remark in run.remarks())
    assert "60.00" in render_text(comparison([run]))


def test_a_state_that_no_run_has_is_damage(tmp_path):
    write_run(tmp_path, state="paused")
    (run,) = collect(tmp_path)
    assert (run.state, run.problems) == ("damaged", ("status.json has the state 'paused', which no run has",))


def test_summary_of_another_schema_is_refused_by_name(tmp_path):
    write_run(tmp_path, changes={"schema": 7})
    assert "schema 7" in render_text(comparison(collect(tmp_path)))


def test_completed_without_summary_is_damaged(tmp_path):
    (write_run(tmp_path) / "summary.json").unlink()
    (run,) = collect(tmp_path)
    assert (run.state, run.problems) == ("damaged", ("status.json says completed, but there is no summary.json",))


def test_missing_files_are_no_error(tmp_path):
    path = write_run(tmp_path)
    for name in ("meta.json", "metrics.jsonl", "status.json"):
        (path / name).unlink()
    (run,) = collect(tmp_path)
    assert (run.state, run.metrics, run.meta) == ("completed", [], {})


def test_torn_metrics_line_is_counted_and_the_rest_read(tmp_path):
    path = write_run(tmp_path, rows=[{"step": 10, "train_loss": 5.0}, {"step": 20, "train_loss": 4.0}])
    with open(path / "metrics.jsonl", "ab") as stream:
        stream.write(b'{"step": 30, "train_l')
    (run,) = collect(tmp_path)
    assert run.series("train_loss") == ([10, 20], [5.0, 4.0])
    assert "metrics.jsonl: 1 damaged line left out" in run.remarks()


def test_null_and_nan_in_metrics_become_nan(tmp_path):
    write_run(tmp_path, rows=[{"step": 1, "train_loss": None}, {"step": 2, "train_loss": math.nan}])
    (run,) = collect(tmp_path)
    steps, values = run.series("train_loss")
    assert steps == [1, 2]
    assert all(math.isnan(value) for value in values)


def test_infinite_perplexity_is_shown_and_never_best(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    write_run(tmp_path, "fourier", 1, changes={"results": {"test": {"segment": evaluation(60) | {"ppl": math.inf}}}})
    text = render_text(comparison(collect(tmp_path)))
    assert "infinite" in text
    assert "infinite *" not in text


def test_runs_set_aside_are_listed_but_not_averaged(tmp_path):
    path = write_run(tmp_path, "fourier", 1, 10.0)
    path.rename(f"{path}.old-1")
    write_run(tmp_path, "fourier", 1, 58.3)
    runs = collect(tmp_path)
    assert sorted(run.state for run in runs) == ["completed", "set aside"]
    (row,) = comparison(runs)
    assert row.cell(("test", "segment")).mean == 58.3


def test_overlapping_roots_count_a_run_once(tmp_path):
    path = write_run(tmp_path)
    assert len(collect([tmp_path, path, path.parent])) == 1


def test_the_same_seed_twice_is_counted_once_and_said(tmp_path):
    for root in ("a", "b"):
        write_run(tmp_path / root, "fourier", 1, 58.3)
    (row,) = comparison(collect(tmp_path))
    assert row.n == 1
    assert "is there twice, counted once" in render_text([row])


def test_protocols_stand_under_the_table_and_a_difference_is_said(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    text = render_text(comparison(collect(tmp_path)))
    assert "test, sliding: context 64, stride 1, 21,000 tokens scored" in text
    other = {"test": {"segment": evaluation(58.3, tokens=500)}}
    write_run(tmp_path, "fourier", 1, changes={"results": other})
    (table,) = tables(comparison(collect(tmp_path)))
    assert any("DIFFERS between rows" in line for line in table.protocols)
    assert not table.best  # 58.30 of 500 tokens does not beat anything


def test_a_table_states_which_weights_were_measured(tmp_path):
    write_run(tmp_path / "text", "softmax", 1)
    write_vision_run(tmp_path / "images", "softmax", 1)
    of_best = "measured with the best checkpoint of each run"
    assert of_best in render_text(comparison(collect(tmp_path / "text")))
    assert of_best not in render_text(comparison(collect(tmp_path / "images")))  # a column names their weights


def test_notes_of_the_data_the_run_and_the_summary(tmp_path):
    write_run(
        tmp_path, "fourier", 1, changes={"notes": ["your data is not the paper's data"], "debug": True, "bad_steps": 3}
    )
    text = render_text(comparison(collect(tmp_path)))
    for note in ("not comparable with WikiText", "your data is not", "a debug run", "3 steps skipped"):
        assert note in text


def test_notes_name_the_model_where_there_are_several(tmp_path):
    rows = [{"step": 600, "valid_ppl": 60.0, "attended_share/00": 0.1}]
    for model, steps in (("lm_tiny", 600), ("lm_small", 900)):
        write_run(tmp_path / model, "fourier", 1, rows=rows, changes={"model": model, "group": model, "steps": steps})
    (table,) = tables(comparison(collect(tmp_path)))
    assert "trained for different numbers of steps: lm_small fourier 900, lm_tiny fourier 600" in table.notes
    doubts = [note for note in table.notes if "attended share" in note]
    assert [doubt.partition(":")[0] for doubt in doubts] == ["lm_small fourier", "lm_tiny fourier"]


def test_bits_per_character_have_their_own_table(tmp_path):
    write_run(tmp_path, "softmax", 1, 61.2)
    bytes_run = {"primary": "bpc", "data": "enwik8", "results": {"test": {"segment": evaluation(3) | {"bpc": 1.23456}}}}
    write_run(tmp_path, "fourier", 1, changes=bytes_run)
    characters, words = sorted(tables(comparison(collect(tmp_path))), key=lambda table: table.primary)
    assert [words.primary, characters.primary] == ["ppl", "bpc"]
    assert "1.2346" in characters.body[0]
    assert "test bpc\nsegment" in characters.header


def test_two_configurations_of_one_attention_are_told_apart(tmp_path):
    write_run(tmp_path, "fourier", 1, changes={"group": "aaaaaaaa1"})
    write_run(tmp_path, "fourier", 2, changes={"group": "bbbbbbbb2"})
    text = render_text(comparison(collect(tmp_path)))
    assert "fourier [aaaaaaaa]" in text
    assert "fourier [bbbbbbbb]" in text


def test_configurations_are_named_by_what_differs_and_sorted_by_size(tmp_path):
    for lr, layers in ((1e-3, 10), (1e-3, 2), (5e-4, 2)):
        name = f"{lr}-{layers}"
        run = write_run(tmp_path / name, "fourier", 1, 60.0, changes={"group": name})
        config = {"seed": 1, "optim": {"lr": lr, "eps": 1e-8}, "model": {"layers": layers}, "data": {"root": str(lr)}}
        (run / "config.yaml").write_text(json.dumps(config | {"attention": {"name": "fourier"}}))
    rows = comparison(collect(tmp_path.iterdir()))
    labels = [row_label(row, rows) for row in rows]
    assert labels == ["fourier lr=0.0005 layers=2", "fourier lr=0.001 layers=2", "fourier lr=0.001 layers=10"]


def test_a_run_is_labelled_by_what_tells_it_from_others_of_its_experiment_and_data(tmp_path):
    expected = {}
    for experiment, data, lr, label in (
        ("first", "builtin_text", 1e-3, "fourier lr=0.001"),
        ("first", "builtin_text", 2e-3, "fourier lr=0.002"),
        ("first", "wikitext2", 3e-3, "fourier"),
        ("second", "builtin_text", 4e-3, "fourier"),
    ):
        facts = {"experiment": experiment, "data": data, "config": {"optim.lr": lr, "model.layers": 2}}
        expected[write_run(tmp_path / str(lr), changes=facts | {"group": str(lr)})] = label
    assert labels_of_runs(collect(tmp_path)) == expected


def test_differing_values_have_their_full_key_where_the_last_part_is_not_enough():
    configs = [
        {"optim.eps": 1e-8, "attention.eps": 0, "model.dim": 4, "schedule.clip": None},
        {"optim.eps": 1e-6, "attention.eps": 0.5, "model.dim": 4, "schedule.clip": True, "optim.momentum": 0.9},
    ]
    assert differing_values(configs) == [
        "optim.eps=1e-08 attention.eps=0 clip=null",
        "optim.eps=1e-06 attention.eps=0.5 clip=true momentum=0.9",
    ]
    assert differing_values(configs[:1]) == [""]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.4, "59 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (3720, "1 h 02 min"), (360_000, "100 h 00 min")],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration_text(seconds) == text
    assert duration_text(math.nan) == "-"


def test_markup_in_names_stays_text(tmp_path):
    write_run(tmp_path, "[red]a|b", 1)
    rows = comparison(collect(tmp_path))
    assert "[red]a|b" in render_text(rows)
    assert r"\[red\]a\|b" in markdown_of(tables(rows))


def test_every_markdown_line_has_the_same_number_of_cells(tmp_path):
    write_run(tmp_path, "a|b", 1)
    write_run(tmp_path, "softmax", 1, state="failed", error="a | b\nc")
    grid = [line for line in markdown_of(tables(comparison(collect(tmp_path)))).splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in grid}) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path):
    path = write_run(tmp_path).parent
    path.chmod(0)
    try:
        with pytest.raises(SetupError, match="cannot be read"):
            collect(tmp_path)
    finally:
        path.chmod(0o700)


def test_missing_root_is_one_clear_error(tmp_path):
    with pytest.raises(SetupError, match=r"no such directory.*make train"):
        collect(tmp_path / "absent")
    assert collect(tmp_path) == []


@pytest.mark.parametrize("script", ["make_tables.py", "report.py"])
@pytest.mark.parametrize("runs", ["absent", "."])
def test_scripts_say_which_command_makes_a_run(tmp_path, script, runs):
    command = [sys.executable, str(REPOSITORY / "scripts" / script), runs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "make train" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_make_tables_prints_both_forms(tmp_path):
    write_run(tmp_path / "runs", "softmax", 1, 61.2)
    command = [sys.executable, str(REPOSITORY / "scripts" / "make_tables.py")]
    text = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    markdown = subprocess.run([*command, "--markdown"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "61.20" in text
    assert "\x1b" not in text  # not a terminal: no escape codes
    assert "| attention |" in markdown


def test_a_table_fits_a_terminal_without_its_least_important_columns(tmp_path):
    """Whole it has more than 80 columns; at every width each cell that is left stands as before, with its star."""
    for attention, ppl in (("softmax", 60.0), ("fourier_matched", 58.0)):
        write_run(tmp_path, attention, 1, ppl)
    rows = comparison(collect(tmp_path))
    whole = render_text(rows)
    grid = [line for line in whole.splitlines() if line.startswith(" ") and not line.startswith("  ")]
    assert max(map(len, grid)) > 80
    for width in (80, 60):
        text = render_text(rows, width=width)
        assert max(map(len, text.splitlines())) <= width
        (note,) = [line for line in text.splitlines() if line.startswith(f"  not shown at {width} columns: train time")]
        assert set(re.findall(r"[\d.]+ \*", text)) <= set(re.findall(r"[\d.]+ \*", whole))
        assert re.search(r"[\d.]+ \*", text)
        assert "test" in text
        assert "train time" not in text.replace(note, "")
    assert render_text(rows, width=200).count("not shown") == 0


def test_a_narrow_terminal_keeps_the_only_results(tmp_path):
    """Images have no test split: their validation is what the table is for."""
    write_vision_run(tmp_path, "fourier_first_coordinate", 1)
    assert "top-1" in render_text(comparison(collect(tmp_path)), width=30)

"""Runs as lines of a CSV file: what may become evidence, and that nothing is lost on the way."""

import csv
import json
import math

import pytest

from fourierformer.errors import SetupError
from fourierformer.results import collect, comparison, render_text
from fourierformer.results.formats import text_of
from fourierformer.results.intervals import interval_tables
from fourierformer.results.measured import NAMES, gather, read_measured, refusal, without_folders, write_measured
from tests.helpers.synthetic_runs import evaluation, write_heads, write_run, write_vision_run


def change(path, name: str, **values) -> None:
    """Changes a JSON file of a run directory."""
    found = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps(found | values))


def lines(path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def only(root):
    (run,) = collect(root)
    return run


def test_tables_from_the_file_equal_those_from_the_run_directories(tmp_path):
    for seed in (1, 2, 3):
        for attention, ppl in (("softmax", 61.0), ("fourier", 58.3)):
            run = write_run(
                tmp_path / "runs", attention, seed, ppl + seed**2 / 7, changes={"notes": ["a note, with | b"]}
            )
            (run / "config.yaml").write_text(f"attention: {{name: {attention}, eps: 1.0e-6, radius: paper}}\n")
        write_vision_run(tmp_path / "runs", "softmax", seed, 93 + seed / 7, ema=True)
    found = collect(tmp_path / "runs")
    file = tmp_path / "measured" / "all.csv"
    assert write_measured(found, file) == (9, 0)
    before, after = comparison(found), comparison(read_measured(file))
    assert render_text(after) == render_text(before)
    assert text_of(interval_tables(after)) == text_of(interval_tables(before))
    assert [row.cell(("test", "sliding")) for row in after] == [row.cell(("test", "sliding")) for row in before]


def test_a_loss_that_says_little_is_called_so_beside_it(tmp_path):
    """By what attention layers logged last, the mean over the layers."""
    early, late = {"floor_share/00": 0.9, "floor_share/01": 0.9}, {"floor_share/00": 0.5, "floor_share/01": 0.3}
    rows = [{"step": 1, "valid_loss": 5.0} | early, {"step": 2, "valid_loss": 4.0} | late]
    write_run(tmp_path / "runs", "performer_trig", rows=rows)
    write_run(tmp_path / "runs", "performer", rows=[{"step": 2, "floor_share/00": 0.05}])
    write_run(tmp_path / "runs", "fourier", rows=[{"step": 2, "attended_share/00": 0.9, "attended_share/01": 0.0}])
    found = collect(tmp_path / "runs")
    write_measured(found, tmp_path / "all.csv")
    for runs in (found, read_measured(tmp_path / "all.csv")):
        text = " ".join(render_text(comparison(runs)).split())
        assert "performer_trig: on average over the layers attention.floor replaces" in text
        assert "40% of the queries" in text
        assert "performer: on average" not in text
        assert "fourier: on average over the layers the attended share of the last query of a sequence is 45%" in text


def test_of_signs_that_attention_is_switched_off_the_surest_is_said(tmp_path):
    """The share over all queries before that of last queries alone, and both before a rank."""
    logged = [{"step": 2, "attended_share/00": 0.2}]
    for attention, means in (("fourier", {"attended_share": 0.3, "rank": 0.4}), ("gaussian", {"attended_share": 0.9})):
        run = write_run(tmp_path, attention, rows=logged)
        (run / "heads.json").write_text(json.dumps({"splits": {"test": {"layers": [], "mean": means}}}))
    text = " ".join(render_text(comparison(collect(tmp_path))).split())
    assert "fourier: on average over the layers the attended share is 30%: in some layers attention.eps" in text
    assert text.count("on average over the layers") == 1


def test_evaluations_and_layers_come_back(tmp_path):
    """What charts are drawn from: the validation curve, what every layer said at each evaluation, and its heads."""
    write_heads(write_run(tmp_path / "runs", "fourier", 3, 58.3), [7.5, 6.5])
    (before,) = collect(tmp_path / "runs")
    write_measured([before], tmp_path / "one.csv")
    (after,) = read_measured(tmp_path / "one.csv")
    for key in ("valid_ppl", "radius/00", "radius/01"):
        steps, values = before.series(key)
        assert after.series(key) == (steps, pytest.approx(values, rel=1e-5))
        assert len(steps) == 10
    assert after.series("train_loss") == ([], [])  # steps between evaluations stay in the run directory
    assert after.head_layers == before.head_layers
    assert [layer["head_distance"] for layer in after.head_layers["test"]] == [7.5, 6.5]


def test_of_many_evaluations_a_line_has_a_part_with_the_last_one(tmp_path):
    rows = [{"step": step, "valid_loss": 1 / 3, "valid_ppl": 1.4} for step in range(1, 1002)]
    write_run(tmp_path / "runs", rows=rows)
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    (run,) = read_measured(tmp_path / "one.csv")
    steps, losses = run.series("valid_loss")
    assert steps == list(range(1, 1002))[::-26][::-1]  # 1,001 / 40 = 25.03: every 26th, counted from the end
    assert set(losses) == {0.333333}


def test_a_model_of_many_layers_comes_back(tmp_path):
    """Its evaluations are more than the 131,072 characters at which Python's csv stops reading a cell."""
    said = {f"{what}/{layer:02}": 1 / 3 for what in ("radius", "attended_share", "floor_share") for layer in range(64)}
    rows = [{"step": step, "valid_loss": 1 / 3, "valid_ppl": 1.4} | said for step in range(1, 41)]
    write_run(tmp_path / "runs", rows=rows)
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    assert len((tmp_path / "one.csv").read_text()) > 131_072
    (run,) = read_measured(tmp_path / "one.csv")
    assert len(run.series("attended_share/63")[0]) == 40


def test_a_file_collected_into_another_has_the_same_columns(tmp_path):
    write_heads(write_run(tmp_path / "runs", "fourier", 3, 58.3), [7.5, 6.5])
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    write_measured(read_measured(tmp_path / "one.csv"), tmp_path / "two.csv")
    assert set(lines(tmp_path / "two.csv")[0]) == set(lines(tmp_path / "one.csv")[0])


@pytest.mark.parametrize(("column", "text"), [("evaluations", "[5]"), ("evaluations", '"x"'), ("head_layers", "[1]")])
def test_damaged_evaluations_are_one_line(tmp_path, column, text):
    file = tmp_path / "one.csv"
    write_heads(write_run(tmp_path / "runs"), [7.5, 6.5])
    write_measured(collect(tmp_path / "runs"), file)
    (line,) = lines(file)
    with open(file, "w", newline="") as target:
        writer = csv.DictWriter(target, list(line))
        writer.writeheader()
        writer.writerow(line | {column: text})
    with pytest.raises(SetupError, match="Restore it from git"):
        read_measured(file)


def test_a_line_has_the_numbers_and_where_they_come_from(tmp_path):
    path = write_run(tmp_path / "runs", "fourier", 3, 58.3)
    (path / "config.yaml").write_text("attention: {name: fourier, radius: matched, eps: 0.0}\n")
    (path / "heads.json").write_text(
        json.dumps({"splits": {"test": {"mean": {"head_distance": 7.5}, "sd": {"head_distance": 2.0}}}})
    )
    write_measured(collect(path), tmp_path / "one.csv")
    (line,) = lines(tmp_path / "one.csv")
    assert tuple(line)[: len(NAMES)] == NAMES
    expected = {
        "run": path.name,
        "seed": "3",
        "commit": "0123abcd",
        "dirty": "false",
        "cpu": "a processor",
        "cpus": "2",
    }
    expected |= {"gpus": "[]", "versions.torch": "2.11.0", "command": "python train_lm.py attention=fourier seed=3"}
    expected |= {"results.test.segment.ppl": "58.3", "results.test.sliding.stride": "1", "steps": "600"}
    expected |= {"settings.radius": "matched", "settings.eps": "0.0", "heads.test.head_distance": "7.5"}
    assert line.items() >= expected.items()


def test_infinite_and_nan_come_back(tmp_path):
    results = {"test": {"segment": evaluation(60) | {"ppl": math.inf, "nll": math.nan}}}
    write_run(tmp_path / "runs", changes={"results": results})
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    (run,) = read_measured(tmp_path / "one.csv")
    found = run.summary["results"]["test"]["segment"]
    assert found["ppl"] == math.inf
    assert math.isnan(found["nll"])
    assert "infinite" in render_text(comparison([run]))


def test_names_that_look_like_numbers_stay_names(tmp_path):
    write_run(tmp_path / "runs", changes={"group": "12345678", "config_hash": "1e234567"})
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    (run,) = read_measured(tmp_path / "one.csv")
    assert (run.summary["group"], run.summary["config_hash"]) == ("12345678", "1e234567")


def test_a_clean_finished_run_is_evidence(tmp_path):
    write_run(tmp_path)
    assert refusal(only(tmp_path)) == ""


@pytest.mark.parametrize("state", ["failed", "diverged", "interrupted", "running"])
def test_an_unfinished_run_never_is(tmp_path, state):
    write_run(tmp_path, state=state, step=120, error="out of memory")
    reason = refusal(only(tmp_path), include_dirty=True, include_debug=True)
    assert reason.startswith(state)
    assert "out of memory" in reason


def test_a_damaged_run_and_one_set_aside_never_are(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "summary.json").write_text("{")
    assert "summary.json cannot be read" in refusal(only(tmp_path / "a"), True, True)
    path = write_run(tmp_path / "b")
    path.rename(f"{path}.old-1")
    assert refusal(only(tmp_path / "b"), True, True).startswith("set aside")


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"dirty": True}, "uncommitted changes"),
        ({"commit": None, "dirty": None}, "commit is unknown"),
        ({"earlier": [{"commit": "89ab", "dirty": True}]}, "uncommitted changes"),  # resumed from a dirty start
    ],
)
def test_uncommitted_changes_are_refused_unless_asked_for(tmp_path, meta, words):
    change(write_run(tmp_path), "meta.json", **meta)
    run = only(tmp_path)
    assert words in refusal(run)
    assert "--include-dirty" in refusal(run, include_debug=True)
    assert refusal(run, include_dirty=True) == ""
    assert ("†" in render_text(comparison([run]))) is (words == "uncommitted changes")


def test_debug_runs_are_refused_unless_asked_for(tmp_path):
    write_run(tmp_path, changes={"debug": True})
    run = only(tmp_path)
    assert "--include-debug" in refusal(run, include_dirty=True)
    assert refusal(run, include_debug=True) == ""


def test_what_was_included_still_says_what_it_is(tmp_path):
    change(write_run(tmp_path / "runs", changes={"debug": True}), "meta.json", earlier=[{"dirty": True}])
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    text = render_text(comparison(read_measured(tmp_path / "one.csv")))
    assert "1 of 1 runs were made with uncommitted changes" in text
    assert "a debug run, not a measurement" in text


def test_collecting_again_replaces_the_same_run_and_keeps_the_others(tmp_path):
    file = tmp_path / "all.csv"
    for seed in (1, 2):
        write_run(tmp_path / "a", "softmax", seed, 60.0 + seed)
    assert write_measured(collect(tmp_path / "a"), file) == (2, 0)
    write_run(tmp_path / "b", "softmax", 2, 70.0)
    write_run(tmp_path / "b", "softmax", 10, 63.0)
    assert write_measured(collect(tmp_path / "b"), file) == (3, 1)
    assert [(line["seed"], line["results.test.segment.ppl"]) for line in lines(file)] == [
        ("1", "61.0"),
        ("2", "70.0"),
        ("10", "63.0"),
    ]


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("python train_lm.py experiment=wt103_small seed=1", "python train_lm.py experiment=wt103_small seed=1"),
        (
            "python /home/me/repo/train_lm.py data.root=/big/disk/wikitext-103",
            "python train_lm.py data.root=wikitext-103",
        ),
        (
            "python train_lm.py runs_root=../runs 'seed=range(1,6)'",
            "python train_lm.py runs_root=../runs 'seed=range(1,6)'",
        ),
        ("python train_lm.py 'data.root=/my disk/text'", "python train_lm.py data.root=text"),
    ],
)
def test_commands_keep_everything_but_the_places_of_one_machine(command, kept):
    assert without_folders(command) == kept


def test_a_file_that_is_something_else_is_neither_read_nor_overwritten(tmp_path):
    write_run(tmp_path / "runs")
    other = tmp_path / "kernel_cpu.csv"
    other.write_text("shape,batch,ms\ndefault,4,371.7\n")
    with pytest.raises(SetupError, match="no file of runs"):
        write_measured(collect(tmp_path / "runs"), other)
    with pytest.raises(SetupError, match="no file of runs"):
        gather([other])
    assert other.read_text() == "shape,batch,ms\ndefault,4,371.7\n"


def test_a_damaged_line_and_a_missing_file_are_named(tmp_path):
    write_run(tmp_path / "runs")
    file = tmp_path / "all.csv"
    write_measured(collect(tmp_path / "runs"), file)
    file.write_text(file.read_text().replace("51.2", "51.2s"))
    with pytest.raises(SetupError, match=r"all\.csv, line 2"):
        gather([file])
    with pytest.raises(SetupError, match="no such file"):
        gather([tmp_path / "absent.csv"])


def test_folders_and_files_make_one_comparison(tmp_path):
    write_run(tmp_path / "a", "softmax", 1, 61.0)
    write_measured(collect(tmp_path / "a"), tmp_path / "a.csv")
    write_run(tmp_path / "b", "softmax", 2, 62.0)
    (row,) = comparison(gather([tmp_path / "b", tmp_path / "a.csv"]))
    assert row.cell(("test", "segment")).values == {1: 61.0, 2: 62.0}


def test_two_runs_of_one_name_are_two_runs(tmp_path):
    for folder, attention in (("a", "softmax"), ("b", "fourier")):
        write_run(tmp_path / folder, attention).rename(tmp_path / folder / "best")  # as by run_dir
    file = tmp_path / "a.csv"
    write_measured(collect(tmp_path / "a"), file)
    assert [run.field("attention") for run in gather([file, tmp_path / "b"])] == ["fourier", "softmax"]
    with pytest.raises(SetupError, match=r"a\.csv has another run named best"):
        write_measured(collect(tmp_path / "b"), file)
    assert [run.field("attention") for run in read_measured(file)] == ["softmax"]


def test_the_same_run_of_another_commit_is_another_run(tmp_path):
    path = write_run(tmp_path / "runs")
    write_measured(collect(tmp_path / "runs"), tmp_path / "old.csv")
    change(path, "meta.json", commit="89abcdef")
    found = gather([tmp_path / "runs", tmp_path / "old.csv"])
    assert [run.field("commit") for run in found] == ["89abcdef", "0123abcd"]


def test_a_line_has_every_start_and_the_instruction_set(tmp_path):
    first = {"started": "2026-01-01T00:00:00+00:00", "commit": "a" * 40, "dirty": False, "cpu": "A, AVX2"}
    run = write_run(tmp_path / "runs")
    change(run, "meta.json", earlier=[first], cpu="B, AVX512")
    file = tmp_path / "one.csv"
    for _ in range(2):  # from the run directory, then from the file itself
        write_measured(collect(tmp_path / "runs") if not file.exists() else read_measured(file), file)
        (line,) = lines(file)
        assert line["instructions"] == "AVX512"
        starts = json.loads(line["starts"])
        assert [start["cpu"] for start in starts] == ["A, AVX2", "B, AVX512"]
        assert starts[0]["commit"] == "a" * 40


def test_a_line_names_the_commit_and_command_that_measured_the_heads(tmp_path):
    from fourierformer.analysis.heads import save

    run = write_run(tmp_path / "runs")
    save(run, "test", {"mean": {"head_distance": 6.0}, "sd": {"head_distance": 1.0}, "layers": []})
    write_measured(collect(tmp_path / "runs"), tmp_path / "one.csv")
    (line,) = lines(tmp_path / "one.csv")
    origin = json.loads(line["head_origin"])["test"]
    assert set(origin) == {"commit", "command"}
    assert origin["commit"]

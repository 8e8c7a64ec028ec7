"""Files of runs whose values have other types than ours (and no checksum, as those of earlier versions): readers say
what they can and never crash."""

import json
import random
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fourierformer.files import atomic_write_text
from fourierformer.results import collect, comparison, render_text, tables, text_of
from fourierformer.results.card import model_card
from fourierformer.results.intervals import interval_tables
from fourierformer.results.measured import csv_row, gather, refusal, write_measured
from fourierformer.results.runs import read_run
from fourierformer.results.tables import head_tables
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

sys.path.insert(0, str(REPOSITORY / "scripts"))
from sweep_status import progress_of

VALUES = [None, 7, -1.5, "text", [], {}, [1, "a"], {"a": [1]}, True, float("inf"), float("nan")]
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def paths(values: dict, above: tuple = ()):
    """Every key of nested objects, as the keys that lead to it."""
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def changed(file: Path, draw: random.Random) -> str:
    content = json.loads(file.read_text())
    path, value = draw.choice(list(paths(content))), draw.choice(VALUES)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(content))
    return f"{file.name}: {'.'.join(path)} = {value!r}"


def test_no_value_crashes_a_reader(tmp_path):
    draw = random.Random(0)
    for number in range(20):
        root = tmp_path / str(number)
        run = write_run(root, "fourier", 1)
        write_run(root, "softmax", 1)
        what = changed(run / draw.choice(["summary.json", "meta.json", "status.json"]), draw)
        try:
            runs = collect(root)
            render_text(comparison(runs))
            assert len([progress_of(run, NOW).line for run in runs]) == 2
            for read in runs:
                if not refusal(read, True, True):
                    csv_row(read)
        except Exception as error:
            error.add_note(what)
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ["summary.json", "meta.json"])
@pytest.mark.parametrize("key", ["commit", "primary", "unit", "parameters", "seconds", "notes", "gpus", "versions"])
def test_tables_and_the_model_card_take_every_value(name, key, tmp_path):
    run = write_run(tmp_path, "fourier", 1)
    original = json.loads((run / name).read_text())
    for value in [*VALUES, "\ud800", {}]:
        (run / name).write_text(json.dumps(original | {key: value}))
        (found,) = gather([tmp_path])
        assert text_of([*tables(comparison([found])), *interval_tables(comparison([found]))])
        atomic_write_text(tmp_path / "README.md", model_card(found, 3, {"name": "fourier"}, "text-generation"))


@pytest.mark.parametrize(
    "key", ["config", "settings", "heads", "head_layers", "head_origin", "diagnostics", "evaluations"]
)
def test_columns_of_collected_rows_may_be_of_any_type_in_a_summary(key, tmp_path):
    run = write_run(tmp_path, "fourier", 1)
    original = json.loads((run / "summary.json").read_text())
    for value in [*VALUES, {"valid": 7}, {"valid": [1]}, {"valid": {"head_distance": "far"}}, [{"step": []}]]:
        (run / "summary.json").write_text(json.dumps(original | {key: value}))
        found = read_run(run)
        rows = comparison([found])
        assert text_of([*tables(rows), *interval_tables(rows), *head_tables(rows)])


@pytest.mark.parametrize(
    "change", [{"seed": "one"}, {"seed": 1.5}, {"results": {"test": {"segment": {"ppl": 10**400}}}}]
)
def test_a_seed_of_another_type_and_an_integer_beyond_floats_are_no_crash(tmp_path, change):
    run = write_run(tmp_path, "fourier", 1)
    (run / "summary.json").write_text(json.dumps(json.loads((run / "summary.json").read_text()) | change))
    runs = collect(tmp_path)
    assert text_of([*tables(comparison(runs)), *interval_tables(comparison(runs))])
    write_measured([run for run in runs if not refusal(run)], tmp_path / "all.csv")


def test_half_of_a_surrogate_pair_is_written_as_text(tmp_path):
    atomic_write_text(tmp_path / "file", "a\ud800\U0001f600")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "a\\ud800\U0001f600"


def test_a_list_in_place_of_a_count_makes_no_column(tmp_path):
    write_run(tmp_path, "softmax", 1)
    run = write_run(tmp_path, "fourier", 1)
    summary = json.loads((run / "summary.json").read_text())
    summary["results"]["test"]["segment"]["stride"] = [1]
    (run / "summary.json").write_text(json.dumps(summary))
    assert "fourier" in render_text(comparison(collect(tmp_path)))

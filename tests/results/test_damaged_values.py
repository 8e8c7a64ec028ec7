"""Files of runs whose values have other types than ours (and no checksum, as those of earlier versions): readers say
what they can and never crash."""

import json
import random
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from fourierformer.results import collect, comparison, render_text
from fourierformer.results.measured import csv_row, refusal
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


def test_a_list_in_place_of_a_count_makes_no_column(tmp_path):
    write_run(tmp_path, "softmax", 1)
    run = write_run(tmp_path, "fourier", 1)
    summary = json.loads((run / "summary.json").read_text())
    summary["results"]["test"]["segment"]["stride"] = [1]
    (run / "summary.json").write_text(json.dumps(summary))
    assert "fourier" in render_text(comparison(collect(tmp_path)))

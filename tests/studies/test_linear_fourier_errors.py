"""The script that measures linear Fourier attention: files, columns, and what its rows must say."""

import csv
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY


def read(path) -> list[dict]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.full("a whole measurement")
def test_a_quick_run_writes_the_errors_and_a_plot(tmp_path):
    command = [sys.executable, "-m", "studies.linear_fourier.simulate", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "cannot replace it" in done.stdout
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".png", ".svg"}
    rows = read(tmp_path / "linear_fourier_errors.csv")
    assert {row["table"][0] for row in rows} == {"A", "B", "C"}
    errors = {(row["table"], row["deviation"], row["method"], row["features"]): float(row["error"]) for row in rows}
    assert errors["A", "0.1", "rff, orth", "256"] < errors["A", "0.1", "rff, orth", "64"]
    assert errors["B", "0.1", "Gaussian, order 2", "153"] < errors["A", "0.1", "rff, orth", "256"]
    assert errors["C", "0.3", "gauss, 8 nodes", "64"] < 0.005


def test_the_committed_errors_have_their_origin_and_support_what_the_class_says():
    path = REPOSITORY / "studies" / "linear_fourier" / "linear_fourier_errors.csv"
    assert [line.split(":")[0] for line in path.read_text().splitlines()[:4]] == [
        "# command",
        "# commit",
        "# versions",
        "# machine",
    ]
    rows = read(path)
    surrogate = [row for row in rows if row["method"] == "Gaussian, infinite order"]
    assert all(float(row["error"]) < 0.02 for row in surrogate if float(row["tau"]) < 2)
    sharp = [row for row in rows if row["table"] == "A" and float(row["tau"]) > 5 and row["method"] != "uniform"]
    assert sharp
    assert all(float(row["error"]) > 0.9 for row in sharp)
    # within the resolution rule a Gauss rule is accurate; the floor of 0.001 costs 0.015 where s = 1 in 2 coordinates
    resolved = [row for row in rows if row["resolution"] and float(row["resolution"]) <= 1]
    assert resolved
    assert all(float(row["error"]) < 0.02 for row in resolved)

"""The script that measures convergence: files, columns, slopes in the right direction, refusals."""

import csv
import subprocess
import sys

import pytest
from command_line import REPOSITORY


def read(path) -> list[dict]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.slow
def test_a_quick_run_writes_errors_slopes_and_plots(tmp_path):
    command = [sys.executable, "scripts/estimator_rates.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".png", ".svg"}
    errors = read(tmp_path / "estimator_rates.csv")
    assert all(float(row["error"]) > 0 for row in errors)
    slopes = read(tmp_path / "estimator_slopes.csv")
    assert {row["part"] for row in slopes} == {"density", "regression"}
    normal = [row for row in slopes if row["case"] == "normal" and row["dim"] == "1"]
    assert normal
    assert all(float(row["slope"]) < 0 for row in normal)  # more samples, less error


def test_the_committed_rates_have_their_origin():
    for name in ("estimator_rates", "estimator_slopes"):
        head = (REPOSITORY / "results" / "measured" / f"{name}.csv").read_text().splitlines()[:4]
        assert [line.split(":")[0] for line in head] == ["# command", "# commit", "# versions", "# machine"]

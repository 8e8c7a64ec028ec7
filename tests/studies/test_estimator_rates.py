"""The script that measures convergence: files, columns, slopes in the right direction, refusals."""

import csv
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY

SAMPLES = ("100", "1000", "10000", "100000")
MEASURED = REPOSITORY / "studies" / "estimators"


def read(path) -> list[dict]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.full("a whole measurement")
def test_a_quick_run_writes_errors_slopes_and_plots(tmp_path):
    command = [sys.executable, "-m", "studies.estimators.simulate", "--quick", "--out", str(tmp_path)]
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
    for name in ("estimator_rates", "estimator_slopes", "estimator_correlations"):
        head = (MEASURED / f"{name}.csv").read_text().splitlines()[:4]
        assert [line.split(":")[0] for line in head] == ["# command", "# commit", "# versions", "# machine"]


def test_the_committed_best_errors_are_those_of_theory():
    """Simulated errors of a density beside its exact MISE at the same radius."""
    best = [row for row in read(MEASURED / "estimator_rates.csv") if row["rule"] == "best" and row["exact"]]
    assert {row["correlation"] for row in best} == {"0", "0.5", "0.8", "0.95"}
    for row in best:
        assert abs(float(row["error"]) - float(row["exact"])) < 4 * float(row["standard_error"]), row


def test_the_committed_correlations_say_what_the_readme_says():
    rows = read(MEASURED / "estimator_correlations.csv")
    ratios = {(int(row["dim"]), row["correlation"], int(row["samples"]), row["kernel"]): row for row in rows}
    ratios = {key: float(row["ratio_to_gaussian"]) for key, row in ratios.items()}
    sinc_4 = [ratio for key, ratio in ratios.items() if key[3] == "sinc^4"]
    assert len(sinc_4) == 2 * 7 * 4
    assert min(sinc_4) > 0.992
    assert max(sinc_4) < 1.039
    full = [ratios[2, value, 1000, "gaussian, full covariance"] for value in ("0.5", "0.9", "0.99")]
    assert [round(ratio, 2) for ratio in full] == [0.88, 0.52, 0.25]


@pytest.mark.full("a whole measurement")
def test_exact_errors_by_correlation_are_written_with_a_chart(tmp_path):
    command = [sys.executable, "-m", "studies.estimators.simulate", "--correlations", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        f"estimator_correlations.{kind}" for kind in ("csv", "png", "svg")
    }
    rows = read(tmp_path / "estimator_correlations.csv")
    assert {(row["dim"], row["samples"]) for row in rows} == {(d, n) for d in "23" for n in SAMPLES}
    for row in rows:
        assert bool(row["bandwidth"]) == row["kernel"].startswith("gaussian") != bool(row["radius"])

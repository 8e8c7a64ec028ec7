"""Launches of the fused kernel, counted without a GPU."""

import csv
import os
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY

pytest.importorskip("triton")


@pytest.mark.full("compiles the kernels of both passes and precisions")
@pytest.mark.timeout(900)
def test_a_driver_that_launches_nothing_counts_launches_and_the_time_of_the_host(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.launches", "--host", "--out", str(tmp_path / "host.csv")]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True)
    lines = (tmp_path / "host.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    # choice, features, three forms; features, three forms, parts of dq
    assert [(row["mode"], row["pass"], float(row["launches"])) for row in rows] == [
        ("half", "forward", 5), ("half", "backward", 5), ("precise", "forward", 5), ("precise", "backward", 5),
    ]  # fmt: skip
    assert all(float(row["us"]) > 0 for row in rows)

"""Training steps in turns: the rows, what they are compared with, and where they come from."""

import csv
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY

LANGUAGE = "model.layers=1 model.dim=16 model.heads=2 model.inner=16"
IMAGES = "debug=smoke_vit"


@pytest.mark.full("a process for each attention")
@pytest.mark.parametrize(
    ("script", "overrides", "unit"), [("train_lm", LANGUAGE, "tokens"), ("train_vit", IMAGES, "images")]
)
def test_two_attentions_beside_each_other(script, overrides, unit, tmp_path):
    out = tmp_path / "training.csv"
    command = [sys.executable, "-m", "benchmarks.training", "attention=softmax", "attention=fourier"]
    command += ["--script", script, "--all", overrides, "--turns", "1", "--steps", "1"]
    subprocess.run([*command, "--threads", "1", "--out", str(out)], cwd=REPOSITORY, check=True, capture_output=True)
    lines = out.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(lines[len(comments) :]))
    assert [row["overrides"] for row in rows] == ["attention=softmax", "attention=fourier"]
    assert float(rows[0]["speed_ratio"]) == float(rows[0]["memory_ratio"]) == 1
    assert all(float(row["milliseconds"]) > 0 and float(row["mebibytes"]) > 0 for row in rows)
    assert float(rows[1][f"{unit}_per_s"]) > 0
    said = "\n".join(comments)
    assert "python -m benchmarks.training attention=softmax" in said
    assert "commit: " in said
    assert str(tmp_path) not in said  # no places of this machine

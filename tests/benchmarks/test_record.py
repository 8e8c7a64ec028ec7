"""What all benchmarks have in common: help, and files that say where their numbers come from."""

import csv
import subprocess
import sys

import pytest
from command_line import REPOSITORY

from benchmarks.record import origin, write_csv
from fourierformer.errors import SetupError

SOURCES = (REPOSITORY / "benchmarks").glob("*.py")
PROGRAMS = sorted(path.stem for path in SOURCES if "argparse.ArgumentParser" in path.read_text())


def test_there_are_programs():
    assert {"attention", "evaluation", "images", "kernel", "training"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_explains_itself(name):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_a_file_says_where_its_numbers_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/attention.py", "--out", f"{tmp_path}/a.csv", "--quick"])
    path = tmp_path / "deeper" / "rows.csv"
    write_csv(path, [{"name": "a", "ms": 1.23456789, "steps": 7}], origin("attention", machine="an abacus"))
    lines = path.read_text().splitlines()
    assert lines[0] == "# command: python -m benchmarks.attention --out a.csv --quick"
    assert [line.split(":")[0] for line in lines[1:4]] == ["# commit", "# versions", "# machine"]
    assert list(csv.DictReader(lines[4:])) == [{"name": "a", "ms": "1.2346", "steps": "7"}]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"file/rows\.csv: .*Choose another file: --out"):
        write_csv(tmp_path / "file" / "rows.csv", [{"name": "a"}])

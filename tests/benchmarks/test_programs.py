"""What all benchmarks have in common: each explains itself."""

import subprocess
import sys

import pytest
from command_line import REPOSITORY

SOURCES = (REPOSITORY / "benchmarks").glob("*.py")
PROGRAMS = sorted(path.stem for path in SOURCES if "argparse.ArgumentParser" in path.read_text())


def test_there_are_programs():
    assert {"attention", "evaluation", "images", "kernel", "training"} <= set(PROGRAMS)


@pytest.mark.full("imports torch and more for each of them")
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_explains_itself(name):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout

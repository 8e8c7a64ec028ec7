"""What all benchmarks have in common: each explains itself."""

import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY

SOURCES = (REPOSITORY / "benchmarks").glob("*.py")
PROGRAMS = sorted(path.stem for path in SOURCES if "Parser(__doc__)" in path.read_text())


def test_there_are_programs():
    assert {"attention", "gpu", "kernel", "paper", "training"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_explains_itself_without_the_seconds_that_torch_takes(name):
    code = (
        "import atexit, runpy, sys; sys.argv = ['benchmark', '--help'];"
        "atexit.register(lambda: print('torch' in sys.modules));"
        f"runpy.run_module('benchmarks.{name}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert done.stdout.endswith("False\n")

"""What a program prints may be lost; the program goes on, and its files have nothing of it."""

import os
import subprocess
import sys

import pytest

from fourierformer.runs.console_io import Parser

PROGRAM = """
import sys
from fourierformer.runs.console_io import survive_closed_streams
survive_closed_streams()
survive_closed_streams()
with open(sys.argv[1], "w") as file:
    for _ in range(3):
        print("a line of a table ─────", flush=True)
        print("a warning ─────", file=sys.stderr)
        print("not even flushed")
    file.write("whole")
"""


def run(path, *, close=(), **options) -> subprocess.CompletedProcess:
    def closed():
        for number in close:
            os.close(number)

    return subprocess.run([sys.executable, "-c", PROGRAM, path], preexec_fn=closed, timeout=60, **options)


@pytest.mark.parametrize("close", [(1,), (2,), (0, 1, 2)])
def test_closed_streams(tmp_path, close):
    assert run(tmp_path / "file", close=close).returncode == 0
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_full_streams(tmp_path, full):
    with open("/dev/full", "w") as nowhere:
        assert run(tmp_path / "file", **{full: nowhere}).returncode == 0
    assert (tmp_path / "file").read_text() == "whole"


def test_a_reader_that_leaves(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    assert run(tmp_path / "file", stdout=writing, stderr=writing).returncode == 0
    os.close(writing)
    assert (tmp_path / "file").read_text() == "whole"


def test_letters_that_the_encoding_lacks(tmp_path):
    done = run(tmp_path / "file", capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.decode("ascii").splitlines()[:2] == ["a line of a table ?????", "not even flushed"]
    assert done.stderr.decode("ascii").splitlines() == 3 * ["a warning ?????"]


def test_a_word_that_is_refused_reaches_the_terminal_without_control_characters(capsys):
    with pytest.raises(SystemExit) as end:
        Parser("What it does.").parse_args(["\x1b[2Jclears"])
    assert end.value.code == 2
    assert "unrecognized arguments: \\x1b[2Jclears" in capsys.readouterr().err

"""Arguments that no program expects: one line, and exit code 2."""

import importlib
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY, train_lm

LONG = 5000 * "a"


@pytest.mark.parametrize(
    "command",
    [
        ["sweep_status", LONG],
        *(
            pytest.param(command, marks=pytest.mark.full("a process for each script"))
            for command in (
                *(["evaluate", LONG], ["export", "run", "--to", LONG], ["generate", LONG], ["report", LONG]),
                *(["head_redundancy", LONG], ["make_tables", LONG], ["new_attention", LONG], ["show_attention", LONG]),
            )
        ),
    ],
    ids=lambda command: command[0],
)
def test_a_script_refuses_an_argument_of_5000_letters(command, tmp_path):
    name, *arguments = command
    program = [sys.executable, str(REPOSITORY / f"scripts/{name}.py"), *arguments]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("override", [f"attention={LONG}", f"+{LONG}=1"])
def test_a_training_refuses_one(override, tmp_path, capfd):
    assert train_lm("debug=smoke", override, f"runs_root={tmp_path}") == 2
    error = capfd.readouterr().err
    assert error.endswith("File name too long. A value that names a file is at most 255 bytes long\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "tile",
    [
        "0",
        "128,64",
        "128,64,8,0",
        "128,64,8,1,4,4",
        "100,64,8",
        "8,64,8",
        "128,64,64",
        "a,b,c",
        "64,foo,64,4",
        "64,64,4,99999",
        "64,64,4,-2",
        LONG,
    ],
)
def test_a_tile_that_is_none_is_refused(tile, monkeypatch, capfd):
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    script = importlib.import_module("inspect_kernel")
    monkeypatch.setattr(sys, "argv", ["inspect_kernel.py", "--tile", tile])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert end.value.code == 2
    assert "powers of two, as in 128,64,8" in capfd.readouterr().err

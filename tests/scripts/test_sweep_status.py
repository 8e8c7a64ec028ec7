"""What a sweep's status says of runs in every state."""

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from fourierformer.results import collect
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

sys.path.insert(0, str(REPOSITORY / "scripts"))
from sweep_status import progress_of, show, summary_line

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
GONE = 2**22 + 1  # above the largest process number that Linux gives


def write(root, name: str, **status) -> None:
    folder = root / "sweep" / name
    folder.mkdir(parents=True)
    about = {"updated": NOW.isoformat(), "pid": os.getpid(), "host": socket.gethostname()}
    (folder / "status.json").write_text(json.dumps(about | status))


@pytest.fixture
def root(tmp_path):
    running = {"state": "running", "step": 100, "steps": 400, "seconds": 50.0}
    silent = (NOW - timedelta(hours=2)).isoformat()
    write(tmp_path, "m-softmax-s1-aaaaaaaa", **running)
    write(tmp_path, "m-softmax-s2-aaaaaaab", **running, pid=GONE)
    write(tmp_path, "m-softmax-s3-aaaaaaac", **running, host="elsewhere", pid=GONE)
    write(tmp_path, "m-softmax-s4-aaaaaaad", **running, host="elsewhere", updated=silent)
    write(tmp_path, "m-softmax-s5-aaaaaaae", state="failed", step=7, steps=400, error="Boom:\n  of a kind")
    write(tmp_path, "m-softmax-s6-aaaaaaaf", state="running")
    return tmp_path


def test_states_and_time_left(root):
    one, gone, far, silent, failed, begun = [progress_of(run, NOW) for run in collect(root)]
    assert (one.state, one.step, one.steps) == ("running", 100, 400)
    assert one.seconds_left == 150  # 300 steps at half a second
    assert gone.state == "stalled"
    assert f"process {GONE} is gone" in gone.remark
    assert far.state == "running"  # a process of another machine cannot be asked
    assert silent.state == "stalled"
    assert "no sign of life for 2 h 00 min (on elsewhere" in silent.remark
    assert (failed.state, failed.remark, failed.seconds_left) == ("failed", "Boom: of a kind", None)
    assert (begun.state, begun.step, begun.seconds_left) == ("running", None, None)


def test_a_run_that_is_measuring_has_no_time_left_to_show(tmp_path):
    write(tmp_path, "m-softmax-s1-aaaaaaaa", state="running", step=400, steps=400, seconds=50.0)
    (one,) = [progress_of(run, NOW) for run in collect(tmp_path)]
    assert (one.state, one.seconds_left, one.remark) == ("running", None, "measuring")
    assert summary_line([one]) == "1 running"


def test_the_last_line_counts(root):
    line = summary_line([progress_of(run, NOW) for run in collect(root)])
    assert line == "1 failed, 3 running, 2 stalled; the last running one ends in 2 min 30 s"


def test_the_sweep_ends_when_its_slowest_run_does(tmp_path):
    """Of 300 steps that are left, at half a second, at one, and at a fifth."""
    for seed, seconds in enumerate((50.0, 100.0, 20.0)):
        write(tmp_path, f"m-softmax-s{seed}-aaaaaaa{seed}", state="running", step=100, steps=400, seconds=seconds)
    line = summary_line([progress_of(run, NOW) for run in collect(tmp_path)])
    assert line == "3 running; the last running one ends in 5 min 00 s"


def test_runs_that_differ_in_a_setting_are_told_apart_by_it(tmp_path, capsys):
    for rate in (0.001, 0.002):
        write_run(tmp_path / str(rate), "fourier", changes={"config": {"optim.lr": rate}, "group": str(rate)})
    show([str(tmp_path)], for_programs=False)
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("fourier lr=0.001")
    assert second.endswith("fourier lr=0.002")
    show([str(tmp_path)], for_programs=True)
    assert [run["settings"] for run in json.loads(capsys.readouterr().out)] == ["fourier lr=0.001", "fourier lr=0.002"]


def test_for_people_and_for_programs(root):
    command = [sys.executable, "scripts/sweep_status.py", str(root)]
    text = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(text) == 7
    assert text[4].startswith("failed ")
    assert text[4].endswith("Boom: of a kind")
    runs = json.loads(subprocess.run([*command, "--json"], cwd=REPOSITORY, capture_output=True, check=True).stdout)
    assert [run["step"] for run in runs] == [100, 100, 100, 100, 7, None]


def test_an_unknown_folder_is_named(tmp_path):
    command = [sys.executable, "scripts/sweep_status.py", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no such directory" in done.stderr


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    command = [sys.executable, "scripts/sweep_status.py", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: No runs under {tmp_path}. `make train`")


def test_numbers_that_are_none_and_torn_files_are_no_crash(tmp_path):
    write(tmp_path, "m-softmax-s1-aaaaaaaa", state="running", step="7", steps=[], seconds={}, pid="x", updated=3)
    write(tmp_path, "m-softmax-s2-aaaaaaab", state=7, step=None, error=["a"])
    (tmp_path / "sweep" / "m-softmax-s3-aaaaaaac").mkdir()
    (tmp_path / "sweep" / "m-softmax-s3-aaaaaaac" / "status.json").write_bytes(b"\xff\xfe{")
    lines = [progress_of(run, NOW).line for run in collect(tmp_path)]
    assert len(lines) == 3
    assert lines[2].startswith("damaged")
    assert all(" - " in line for line in lines)  # no number is shown that is none

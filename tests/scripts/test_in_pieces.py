"""A sweep in pieces: a stop saves, the printed states are true, and all pieces together are the whole sweep."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest
from hydra import compose, initialize_config_dir

from tests.helpers.command_line import CONFIGS, MODEL, REPOSITORY, one_job, rows

COMMAND = [sys.executable, str(REPOSITORY / "scripts" / "in_pieces.py")]
STEPS = 300
PATIENCE = 240  # seconds; only a piece that hangs takes so long


def piece(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.full("several trainings in processes of their own")
def test_a_sweep_that_is_stopped_goes_on_with_the_same_command(tmp_path):
    rhythm = (f"trainer.steps={STEPS}", "trainer.log_every=10", "trainer.eval_every=150", "trainer.save_every=150")
    overrides = ("-m", *MODEL, *rhythm, "seed=1,2", f"runs_root={tmp_path}")
    arguments = ("--minutes", "30", "train_lm.py", *overrides)
    process = subprocess.Popen([*COMMAND, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + PATIENCE
    while not any(step_of(path) for path in tmp_path.rglob("status.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # what --minutes does, at a moment that does not depend on the machine
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "the time is up: the same command continues" in printed
    assert "all is done" not in printed
    (status,) = [json.loads(path.read_text()) for path in tmp_path.rglob("status.json")]
    assert f"interrupted at step {status['step']:,} of {STEPS}" in printed
    assert 0 < status["step"] < STEPS

    done = piece(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all is done\n")
    runs = [path.parent for path in tmp_path.rglob("summary.json")]
    assert len(runs) == 2
    for run in runs:
        assert [row["step"] for row in rows(run) if "lr" in row] == list(range(10, STEPS + 1, 10))

    again = piece(*arguments)
    assert again.stdout.count("already done: ") == 2
    assert [line.split("  ")[0] for line in again.stdout.splitlines()[-3:-1]] == ["done", "done"]


def step_of(path) -> int:
    try:
        return json.loads(path.read_text()).get("step") or 0
    except (OSError, ValueError):
        return 0


OBEYS = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("code", "minutes", "exit_code", "says"),
    [
        (OBEYS, 0.05, 0, "the time is up"),
        ("import time; time.sleep(600)", 0.05, 0, "the time is up"),  # before it listens to signals
        ("pass", 30, 0, "all is done"),
        ("raise SystemExit(3)", 30, 3, ""),
        ("raise SystemExit(143)", 30, 143, ""),  # somebody else stopped it
    ],
)
def test_how_a_piece_ends(tmp_path, code, minutes, exit_code, says):
    (tmp_path / "train.py").write_text(code)
    done = piece("--minutes", str(minutes), str(tmp_path / "train.py"), f"runs_root={tmp_path}")
    assert (done.returncode, done.stdout.partition(":")[0].strip()) == (exit_code, says)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing is not a script"),
        (["sweep=table1"], "sweep=table1 is not a script"),
        (["--minutes", "0", "train_lm.py"], "more than 0"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    done = piece(*arguments)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]


def test_make_evidence_runs_table_1_on_the_given_data():
    command = [
        "make",
        "--no-print-directory",
        "-n",
        "-o",
        "setup",
        "evidence-gpu",
        "DATA=/some/where",
        "PIECE=2",
        "ARGS=trainer.save_every=50",
    ]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    _, script, option, minutes, training, *overrides = shlex.split(printed.strip().splitlines()[-1])
    assert (script, option, minutes, training) == ("scripts/in_pieces.py", "--minutes", "2", "train_lm.py")
    assert {"sweep=table1", "scale=wikitext2", "seed=1,2,3"} < set(overrides)
    assert (REPOSITORY / script).exists()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        values = compose("train_lm", overrides=["experiment=wt2_small", *one_job(overrides)])
    assert values.data.root == "/some/where"
    assert values.trainer.save_every == 50

"""make bench-gpu, in its small form on a CPU: every part, every configuration, numbers that follow from each other."""

import csv
import os
import select
import signal
import subprocess
import sys
from itertools import chain, product
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu
from tests.helpers.command_line import REPOSITORY

pytestmark = pytest.mark.full("a whole run of every part")

ABSENT = ("wandb", "datasets")  # on a machine that has torch, triton, timm and hydra only
COMMAND = [sys.executable, "-m", "benchmarks.gpu"]


def rows_of(path) -> list[dict]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(folder with the files, what was printed) of one run without wandb and datasets."""
    folder, lacking = tmp_path_factory.mktemp("gpu"), tmp_path_factory.mktemp("lacking")
    (lacking / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({ABSENT!r})\n")
    paths = os.pathsep.join([str(lacking), str(REPOSITORY)])
    environment = os.environ | {"PYTHONPATH": paths}
    command = [*COMMAND, "--device", "cpu", "--small", "--minutes", "40", "--out", str(folder)]  # also on busy cores
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_every_part_is_done(measured):
    parts = {row["name"]: row for row in rows_of(measured[0] / "gpu_parts.csv")}
    assert set(parts) == {"contact", "kernel", "training", "tests", "others"}
    assert {part["outcome"] for part in parts.values()} == {"done"}
    counted = parts["tests"]["detail"]
    assert counted == (
        "1 passed, 0 failed, 0 skipped" if torch.cuda.is_available() else "0 passed, 0 failed, 1 skipped"
    )
    assert " 0 failed, " in parts["others"]["detail"]


def test_every_configuration_has_a_row(measured):
    rows = rows_of(measured[0] / "gpu_training.csv")
    found = {(row["model"], row["attention"], row["precision"]) for row in rows}
    models = ("lm_small, tiny", "lm_medium, tiny", "deit_tiny, tiny")
    assert found == set(product(models, ("softmax", "fourier"), ("fp32", "tf32", "bf16")))
    assert len(rows) == len(found)
    assert {row["status"] for row in rows} == {"measured"}
    assert {row["unit"] for row in rows if row["model"].startswith("deit")} == {"images"}


def test_first_contact_launches_all_kernels_and_states_their_errors(measured):
    (row,) = rows_of(measured[0] / "gpu_contact.csv")
    assert (row["case"], row["status"]) == ("odd width", "launched")
    errors = [float(row[name]) for name in ("output", "dq", "dk", "dv", "dradius")]
    assert min(errors) > 0
    assert max(errors) < 1e-5  # the float32 class
    assert 0 < float(row["excess"]) < 1


def test_numbers_follow_from_each_other(measured):
    rows = rows_of(measured[0] / "gpu_training.csv")
    steps = {"lm_small, tiny": 500_000, "lm_medium, tiny": 400_000, "deit_tiny, tiny": 300 * (1_281_167 // 4)}
    softmax = {(row["model"], row["precision"]): row for row in rows if row["attention"] == "softmax"}
    for row in rows:
        seconds, other = float(row["step_ms"]) / 1e3, softmax[row["model"], row["precision"]]
        samples = 4 if row["unit"] == "images" else 4 * 16
        assert int(row["whole_steps"]) == steps[row["model"]]
        assert float(row["whole_hours"]) == pytest.approx(int(row["whole_steps"]) * seconds / 3600, rel=1e-3)
        assert float(row["per_second"]) == pytest.approx(samples / seconds, rel=1e-3)
        assert float(row["time_ratio"]) == pytest.approx(seconds / float(other["step_ms"]) * 1e3, rel=1e-3)
        assert float(row["memory_ratio"]) == pytest.approx(
            float(row["mebibytes"]) / float(other["mebibytes"]), rel=1e-3
        )
        assert float(row["mebibytes"]) > 0
        assert 0 < float(row["attention_share"]) < 1


def test_files_say_where_they_come_from(measured):
    folder, printed = measured
    head = (folder / "gpu_training.csv").read_text().splitlines()[:4]
    assert [line.split(":")[0] for line in head] == ["# command", "# commit", "# versions", "# machine"]
    assert {"commit", "torch", "triton", "machine", "gpu"} <= rows_of(folder / "gpu_kernel.csv")[0].keys()
    summary = (folder / "gpu_summary.md").read_text()
    assert summary in printed
    assert "| deit_tiny, tiny | fourier | bf16 |" in summary
    assert "| lm_tiny | forward+backward | softmax |" in summary


def test_every_quick_test_that_needs_a_gpu_is_run():
    marked = "@pytest.mark.gpu\n@pytest.mark.skipif"  # full: between the two
    files = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if marked in path.read_text()]
    assert {str(path.relative_to(REPOSITORY)) for path in files} == set(chain(*gpu.TESTS.values()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_can_be_done():
    done = subprocess.run(COMMAND, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == "error: no GPU: torch sees none. On a CPU: python -m benchmarks.gpu --device cpu --small"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--device", "cpu"), "goes with --small"), (("--device", "cpu", "--small", "--minutes", "0"), "more than 0")],
)
def test_bad_input_is_one_line(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_part_whose_packages_are_missing_names_them(monkeypatch, tmp_path):
    monkeypatch.setitem(gpu.NEEDS, "training", ("hydra", "no_such_module"))
    part = gpu.run("training", 1.0, SimpleNamespace(out=tmp_path / "made"))
    assert (tmp_path / "made").is_dir()
    assert (part.outcome, part.detail) == ("failed", "not installed: pip install no_such_module")


def test_a_part_that_fails_or_hangs_is_named_and_leaves_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    (tmp_path / "fails.py").write_text("raise SystemExit(7)")
    (tmp_path / "works.py").write_text("pass")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    modules = {"tests": "fails", "kernel": "hangs", "training": "works"}
    monkeypatch.setattr(gpu, "command_of", lambda name, seconds, args: [modules[name]])
    monkeypatch.setattr(gpu, "SHARES", {"tests": 0.9, "kernel": 0.03, "training": 0.9})
    arguments = ["--device", "cpu", "--small", "--minutes", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    assert gpu.main() is False
    outcomes = [(row["name"], row["outcome"], row["detail"]) for row in rows_of(tmp_path / "gpu_parts.csv")]
    assert outcomes[0] == ("tests", "failed", "no report")
    assert outcomes[1][:2] == ("kernel", "stopped")
    assert outcomes[2] == ("training", "done", "exit code 0")
    assert "kernel: stopped" in capsys.readouterr().err


def test_a_part_that_ends_leaves_no_process_behind():
    """Its child ignores Ctrl-C."""
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    leader = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)"
    # a shell's background jobs, of which these tests may be one, ignore Ctrl-C
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; {leader}; import time; time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    for _ in range(2):  # both are running
        process.stdout.readline()
    gpu.end(process)
    ended, _, _ = select.select([process.stdout], [], [], 30)  # the pipe ends with the last process that holds it
    assert ended
    assert (process.returncode, process.stdout.read()) == (-signal.SIGINT, "")


def test_the_parts_fit_into_the_time():
    total = 60 * 9
    assert sum(gpu.SHARES.values()) * total + gpu.GRACE <= total
    args = SimpleNamespace(small=False, device="cuda", out=REPOSITORY, report="tests.xml")
    for name, option, unit in (("kernel", "--budget-seconds", 1), ("training", "--minutes", 60)):
        seconds = gpu.SHARES[name] * total
        command = gpu.command_of(name, seconds, args)
        last_start = unit * float(command[command.index(option) + 1])
        assert last_start == pytest.approx(seconds - gpu.LAST_CALL, abs=1)

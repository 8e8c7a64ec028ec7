"""One command, one directory: the same command again resumes or is done, another config is refused."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from fourierformer.errors import SetupError
from fourierformer.files import read_json, write_json
from fourierformer.results import collect
from fourierformer.runs.console_io import exit_on_user_error
from fourierformer.runs.directory import Heartbeat, RunDirectory
from fourierformer.runs.spec import stored_spec
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.command_line import REPOSITORY, only_run, rows, status, train_lm


def directories(root) -> set[str]:
    return {path.parent.name for path in root.rglob("config.yaml")}


def test_a_finished_run_leaves_its_files_and_no_others(finished):
    root, run = finished
    assert {path.name for path in root.iterdir()} == {"smoke"}
    expected = {"config.yaml", "metrics.jsonl", "status.json", "summary.json", "meta.json", "report.html"}
    assert expected <= {path.name for path in run.iterdir()}
    assert status(run)["state"] == "completed"
    assert status(run)["step"] == status(run)["steps"] == 4
    assert [row["step"] for row in rows(run) if "train_loss" in row] == [1, 2, 3, 4]
    assert [row["step"] for row in rows(run) if "valid_ppl" in row] == [2, 4]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["run"] == run.name
    assert summary["results"]["valid"]["segment"]["context"] == 8


def test_a_measurement_gives_signs_of_life(smoke, tmp_path, monkeypatch):
    """It may take longer than the training; without them sweep_status.py would call the run stalled."""
    original, written = RunDirectory.write_status, []

    def write_status(self, state, **fields):
        written.append((state, fields.get("step")))
        original(self, state, **fields)

    monkeypatch.setattr(Heartbeat, "SECONDS", 0.0)
    monkeypatch.setattr(RunDirectory, "write_status", write_status)
    assert train_lm(*smoke, f"run_dir={tmp_path / 'run'}") == 0
    last_step = len(written) - written[::-1].index(("running", 4)) - 1
    assert written[last_step + 1 :] == [("running", None)] * (len(written) - last_step - 2) + [("completed", None)]
    assert len(written) - last_step > 2
    kept = status(tmp_path / "run")
    assert (kept["step"], kept["steps"], "seconds" in kept) == (4, 4, True)


@pytest.mark.parametrize(
    "convenience",
    [
        [],
        ["trainer.device=cpu", "trainer.save_every=1", "trainer.log_every=3", "tracker=wandb", "trainer.compile=never"],
        ["trainer.keep_checkpoints=9", "evaluation.tokens_per_forward=64"],
    ],
)
def test_the_same_command_again_is_already_done(finished, smoke, convenience, capfd):
    """Also with keys changed that do not change what is computed."""
    root, run = finished
    before = (run / "metrics.jsonl").read_bytes(), (run / "status.json").read_bytes()
    assert train_lm(*smoke, *convenience, f"runs_root={root}") == 0
    printed = capfd.readouterr().out
    assert f"already done: {run}" in printed
    assert ("; wandb does not have it (fresh=true" in printed) == ("tracker=wandb" in convenience)
    assert ((run / "metrics.jsonl").read_bytes(), (run / "status.json").read_bytes()) == before
    assert directories(root) == {run.name}


def test_a_measurement_asked_for_later_is_made_without_training(copied, smoke):
    root, run = copied
    before = (run / "metrics.jsonl").read_bytes()
    trained_by = {"processes": 4, "device": "cuda", "peak_memory_bytes": 10**12, "attention_backend": "fused"}
    write_json(run / "summary.json", read_json(run / "summary.json") | trained_by)
    assert train_lm(*smoke, f"runs_root={root}", "evaluation.protocols=[segment,sliding]") == 0
    measured = json.loads((run / "summary.json").read_text())
    assert set(measured["results"]["valid"]) == {"segment", "sliding"}
    assert {key: measured[key] for key in trained_by} == trained_by  # of the machine whose `seconds` it has
    assert (run / "metrics.jsonl").read_bytes() == before


def test_fresh_moves_the_old_run_aside(copied, smoke, capfd):
    root, run = copied
    mark = run / "a note"
    mark.write_text("kept")
    assert train_lm(*smoke, f"runs_root={root}", "fresh=true") == 0
    aside = run.with_name(f"{run.name}.old-1")
    assert (aside / "a note").read_text() == "kept"
    assert str(aside) in capfd.readouterr().out
    assert rows(run) == rows(aside)


def test_run_dir_with_another_config_is_refused_with_the_difference(copied, smoke, capfd):
    _, run = copied
    before = (run / "metrics.jsonl").read_bytes()
    assert train_lm(*smoke, f"run_dir={run}", "schedule.warmup_steps=7", "seed=2") == 2
    error = capfd.readouterr().err
    assert re.search(r"holds a run of another config: schedule.warmup_steps: \d+ -> 7; seed: 1 -> 2\.", error)
    assert "fresh=true" in error
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("again", "began", "goes_on"),
    [
        ({"TORCHELASTIC_RESTART_COUNT": "1"}, None, True),
        ({"SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "7"}, "7", True),
        ({"SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "8"}, "7", False),  # another job began the run that is there
        ({"SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "8"}, None, False),
        ({"SLURM_RESTART_COUNT": "0", "SLURM_JOB_ID": "7"}, "7", False),
    ],
)
def test_a_command_with_fresh_that_is_started_again_goes_on(smoke, copied, capfd, monkeypatch, again, began, goes_on):
    """By Slurm after its time limit, or by torchrun: else it would begin at step 0 again every time."""
    root, run = copied
    meta = read_json(run / "meta.json")
    write_json(run / "meta.json", meta | ({"slurm_job": began} if began else {}))
    for name, value in again.items():
        monkeypatch.setenv(name, value)
    assert train_lm(*smoke, f"runs_root={root}", "fresh=true") == 0
    printed = capfd.readouterr().out
    assert ("this job was started again and goes on with its run" in printed) is goes_on
    assert ("already done" in printed) is goes_on
    assert bool(list(run.parent.glob("*.old-*"))) is not goes_on
    if not goes_on:
        assert read_json(run / "meta.json").get("slurm_job") == again.get("SLURM_JOB_ID")


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_checkpoints_stay_as_the_run_says_and_the_best_one(smoke, tmp_path, keep):
    choice = ("trainer.save_every=1", f"trainer.keep_checkpoints={keep}")
    assert train_lm(*smoke, *choice, f"runs_root={tmp_path}") == 0
    run = only_run(tmp_path)
    best = json.loads((run / "summary.json").read_text())["best"]["step"]
    kept = {int(path.name.split("_")[1]) for path in (run / "checkpoints").iterdir()}
    assert kept == {*range(5 - keep, 5), best}


@pytest.mark.parametrize("fresh", ["fresh=false", "fresh=true"])
def test_a_folder_of_another_program_is_neither_filled_nor_moved(smoke, tmp_path, fresh, capfd):
    (tmp_path / "thesis.tex").write_text("kept")
    assert train_lm(*smoke, f"run_dir={tmp_path}", fresh) == 2
    assert f"error: {tmp_path} is not a run directory and not empty (it has thesis.tex)" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_home_folder_is_found(smoke, tmp_path, monkeypatch):
    """Also by Hydra, which makes the folder of a sweep's record itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert train_lm("-m", *smoke, "runs_root=~/mine") == 0
    assert only_run(tmp_path / "mine").exists()
    # a matplotlib that is loaded only now keeps its fonts in hidden folders
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["mine"]


def test_a_directory_in_use_is_refused_with_the_pid(copied, smoke, capfd):
    root, run = copied
    (run / "status.json").unlink()  # of a complete run it is enough to say that it is done
    with RunDirectory(run).lock():
        assert train_lm(*smoke, f"runs_root={root}") == 2
        assert train_lm(*smoke, f"runs_root={root}", "fresh=true") == 2
    assert capfd.readouterr().err.count(f"pid {os.getpid()}") == 2


@pytest.mark.parametrize("file", ["status.json", "summary.json"])
@pytest.mark.parametrize("damage", ['{"state": "comp', "[]"])
def test_a_damaged_file_is_written_again(copied, smoke, file, damage):
    root, run = copied
    before = (run / "metrics.jsonl").read_bytes()
    original = json.loads((run / file).read_text())
    (run / file).write_text(damage)
    assert train_lm(*smoke, f"runs_root={root}") == 0
    repaired = json.loads((run / file).read_text())
    assert repaired.keys() == original.keys()
    assert repaired.get("results") == original.get("results")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_what_a_process_left_that_was_killed_at_its_end_is_deleted(copied, smoke):
    root, run = copied
    gone = subprocess.Popen(["true"])
    gone.wait()
    litter = run / f".report.html.{gone.pid}.tmp"  # it was killed when its results were written
    litter.touch()
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert not litter.exists()


def test_damaged_measurements_are_made_again(copied, smoke):
    root, run = copied
    results = json.loads((run / "summary.json").read_text())["results"]
    (run / "evaluation.json").write_text("{")
    (run / "summary.json").unlink()
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert json.loads((run / "summary.json").read_text())["results"] == results


def test_an_edited_perplexity_is_measured_again(copied, smoke):
    root, run = copied
    results = json.loads((run / "summary.json").read_text())["results"]
    measured = (run / "evaluation.json").read_text()
    ppl = str(results["valid"]["segment"]["ppl"])
    (run / "evaluation.json").write_text(measured.replace(ppl, "1.5"))
    (run / "summary.json").unlink()
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert json.loads((run / "summary.json").read_text())["results"] == results


def test_a_changed_row_or_config_is_named_and_not_shown(copied):
    root, run = copied
    (run / "metrics.jsonl").write_text(
        (run / "metrics.jsonl").read_text().replace('"train_loss": ', '"train_loss": 1', 1)
    )
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("dim: 16", "dim: 32"))
    (read,) = collect(root)
    assert len([row for row in read.metrics if "train_loss" in row]) == 3
    assert "metrics.jsonl: 1 damaged line left out" in read.remarks()
    assert "config.yaml is damaged: it does not match the hash of the run" in read.remarks()
    with pytest.raises(SetupError, match=r"config.yaml is damaged: it does not match the hash"):
        stored_spec(run)


def test_lost_rows_of_a_finished_run_are_named(copied):
    root, run = copied
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(kept[:-1]))
    (read,) = collect(root)
    assert f"metrics.jsonl is damaged: it has {len(kept) - 1} of {len(kept)} rows" in read.remarks()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (ModuleNotFoundError("No module named 'matplotlib'"), "ModuleNotFoundError: No module named 'matplotlib'"),
    ],
)
def test_a_run_without_its_page_is_done(smoke, tmp_path, monkeypatch, capfd, error, reason):
    def failing(*_):
        raise error

    monkeypatch.setattr("fourierformer.report.write_report", failing)
    assert train_lm(*smoke, f"runs_root={tmp_path}", "trainer.steps=1") == 0
    assert f"could not be written ({reason})" in capfd.readouterr().out
    assert status(only_run(tmp_path))["state"] == "completed"


@pytest.mark.parametrize("damage", ["seed: [1", ""])
def test_a_damaged_config_is_named(copied, smoke, damage, capfd):
    root, run = copied
    (run / "config.yaml").write_text(damage)
    assert train_lm(*smoke, f"runs_root={root}") == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {run / 'config.yaml'}")
    assert "fresh=true" in error
    assert train_lm(*smoke, f"runs_root={root}", "fresh=true") == 0


def test_a_run_does_not_go_on_with_another_backend_of_its_attention(smoke, tmp_path, monkeypatch, capfd):
    """Such as where the cache of a compiled kernel is full. A new run takes the other one and says so."""
    name = "fourierformer.attention.mechanisms.softmax.Softmax.backend_name"
    command = [*smoke, f"runs_root={tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(name, lambda *_: "compiled")
        assert train_lm(*command) == 0
    run = only_run(tmp_path)
    (run / "summary.json").unlink()
    before = (run / "metrics.jsonl").read_bytes()
    assert train_lm(*command) == 2
    error = capfd.readouterr().err
    assert f"{run} was trained with the attention's backend 'compiled', and here only 'torch' can run" in error
    assert error.count("\n") == 1
    assert (run / "metrics.jsonl").read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(name, lambda *_: "compiled")
        assert train_lm(*command) == 0


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.filterwarnings("ignore:.*status.json could not be written")
def test_a_directory_removed_or_renamed_during_the_run_is_named(smoke, tmp_path, monkeypatch, capfd, finished, removed):
    """Nothing of it is made again: checkpoints alone would be refused by the same command as foreign files."""
    original, aside = Checkpoints.save, tmp_path / "aside"

    def save(self, step, state, best=False):
        if step == 4:
            shutil.rmtree(self.directory.parent) if removed else self.directory.parent.rename(aside)
        return original(self, step, state, best)

    command = [*smoke, f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        assert train_lm(*command) == 1
    assert f"error: {tmp_path / 'run'} was removed or renamed during the run. Move it back" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    if not removed:
        aside.rename(tmp_path / "run")
    assert train_lm(*command) == 0
    assert rows(tmp_path / "run") == rows(finished[1])


def test_a_skipped_step_is_counted_in_the_summary(smoke, tmp_path, monkeypatch):
    loss, factors = LanguageObjective.loss, itertools.chain([1.0, math.nan], itertools.repeat(1.0))
    monkeypatch.setattr(LanguageObjective, "loss", lambda *arguments: next(factors) * loss(*arguments))
    assert train_lm(*smoke, f"runs_root={tmp_path}") == 0
    assert json.loads((only_run(tmp_path) / "summary.json").read_text())["bad_steps"] == 1


@pytest.mark.parametrize(
    ("most_bad", "message"),
    [(2, "diverged at step"), (99, "diverged: no evaluation had finite numbers. Try a lower")],
)
def test_a_run_that_diverges_reports_it_once(smoke, tmp_path, capfd, most_bad, message):
    """Also when it ends before so many bad steps."""
    overrides = ("optim.lr=1e30", f"trainer.max_bad_steps={most_bad}", "trainer.steps=50")
    assert train_lm(*smoke, f"runs_root={tmp_path}", *overrides) == 3
    error = capfd.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    run = only_run(tmp_path)
    assert status(run)["state"] == "diverged"
    assert not (run / "summary.json").exists()


def test_a_crash_keeps_its_traceback(smoke, tmp_path, monkeypatch, capfd):
    def burst(*_):
        raise ZeroDivisionError("burst pipe")

    monkeypatch.setattr("fourierformer.tasks.language_objective.LanguageObjective.evaluate", burst)
    assert train_lm(*smoke, f"runs_root={tmp_path}") == 1
    assert "ZeroDivisionError: burst pipe" in capfd.readouterr().err
    written = status(only_run(tmp_path))
    assert written["state"] == "failed"
    assert written["step"] == 2
    assert written["error"] == "ZeroDivisionError: burst pipe"
    assert "in burst" in written["traceback"]


def gpu_is_full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ...")


def memory_is_full(*_):
    torch.empty(10**15)


@pytest.mark.parametrize(("full", "amount"), [(gpu_is_full, "2.00 gib"), (memory_is_full, f"{4 * 10**15} bytes")])
def test_too_little_memory_is_one_line_with_a_way_out(smoke, tmp_path, monkeypatch, capfd, full, amount):
    with monkeypatch.context() as patched:
        patched.setattr("fourierformer.tasks.language_objective.LanguageObjective.evaluate", full)
        assert train_lm(*smoke, f"runs_root={tmp_path}") == 1
    error = capfd.readouterr().err
    assert error.startswith(
        f"error: there is not enough memory (tried to allocate {amount}). Use a smaller trainer.micro"
    )
    assert error.count("\n") == 1
    assert status(only_run(tmp_path))["state"] == "failed"
    assert train_lm(*smoke, f"runs_root={tmp_path}") == 0
    with pytest.raises(SystemExit, match="1"), exit_on_user_error():  # of the scripts, evaluate.py say
        full()
    assert amount in capfd.readouterr().err


@pytest.mark.full("a process of its own; tests/runs/test_console_io.py has the streams alone")
def test_without_a_console_a_run_is_completed(smoke, tmp_path):
    """stdout closed, stderr full, and an encoding without the lines of a table."""
    command = f"{sys.executable} {REPOSITORY}/train_lm.py {' '.join(smoke)} runs_root={tmp_path} >&- 2>/dev/full"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    assert subprocess.run(command, shell=True, env=environment, timeout=120, check=False).returncode == 0
    run = only_run(tmp_path)
    assert status(run)["state"] == "completed"
    assert (run / "report.html").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(smoke, tmp_path, capfd):
    assert train_lm(*smoke, f"runs_root={tmp_path / 'runs'}", "dry_run=true") == 0
    printed = capfd.readouterr().out
    # dim 16, inner 16, one layer, 50 words and <eos>: embedding 51*16, output bias 51; attention 4*16^2; feed-forward
    # 2*16*16 + 32; two LayerNorms 4*16
    parameters = 51 * 16 + 51 + 4 * 256 + 2 * 256 + 32 + 64
    for part in (
        f"parameters   {parameters:,}",
        "length       4 steps of 16 tokens = 64 tokens",
        "MiB",
        "vocabulary 51",
    ):
        assert part in printed
    assert "(new)" in printed
    assert "log_every" not in printed  # --cfg job prints the config
    assert not list(tmp_path.iterdir())


def test_dry_run_without_data_prints_the_rest_first(tmp_path, capfd):
    arguments = ["experiment=wt103_small", f"data.root={tmp_path}/no", f"data.cache={tmp_path}/no", "dry_run=true"]
    assert train_lm(*arguments, f"runs_root={tmp_path}") == 2
    printed, error = capfd.readouterr()
    assert "parameters   44,018,410" in printed
    assert "length       500,000 steps of 24,576 tokens" in printed
    assert "Data 'wikitext103' is missing" in printed
    assert error.startswith("error: the data is missing")
    assert not list(tmp_path.iterdir())


def test_a_complete_run_is_said_to_be_done_without_torch(smoke, finished):
    """Loading torch and drawing the page would take seconds."""
    root, run = finished
    absent = "import sys; sys.modules |= dict.fromkeys(('torch', 'matplotlib'))"
    code = f"{absent}; from fourierformer.runs.launch import launch; launch('train_lm')"
    command = [sys.executable, "-c", code, *smoke, f"runs_root={root}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    loading, first, *table = done.stdout.splitlines()
    assert loading == "loading ..."
    assert first.startswith(f"already done: {run}")
    assert table[-1] == f"report: {run}/report.html"


@pytest.mark.full("a training in a process of its own")
@pytest.mark.parametrize("attention", ["softmax", "fourier"])
def test_a_run_that_compiles_nothing_does_not_load_the_compiler(smoke, tmp_path, attention):
    """Its import takes two seconds."""
    code = "import sys; sys.modules['torch._dynamo'] = None; from fourierformer.runs.launch import launch; "
    command = [sys.executable, "-c", code + "launch('train_lm')", *smoke, f"attention={attention}"]
    done = subprocess.run([*command, f"runs_root={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

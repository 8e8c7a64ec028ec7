"""Checkpoints of a run directory that are damaged, unreadable, of another run or of an earlier version."""

import os
import shutil

import pytest
import torch

from fourierformer import load_run
from fourierformer.errors import UserError
from fourierformer.runs.parts import open_run
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.command_line import only_run, rows, status, train_lm


def test_a_damaged_newest_checkpoint_falls_back(copied, smoke, finished, capfd):
    root, run = copied
    (run / "summary.json").unlink()
    newest = sorted((run / "checkpoints").glob("step_*"))[-1]
    with open(newest / "state.pt", "r+b") as file:
        file.truncate(1000)
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert f"{newest} is damaged" in capfd.readouterr().out
    assert rows(run) == rows(finished[1])


def test_unreadable_checkpoints_stop_the_run_and_cut_no_rows(copied, smoke, finished, monkeypatch, capfd):
    root, run = copied
    (run / "summary.json").unlink()
    list_names, scan = os.listdir, os.scandir

    def refusing(function):
        def refused(path="."):
            if str(path) == str(run / "checkpoints"):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path)

        return refused

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refusing(list_names))
        patch.setattr(os, "scandir", refusing(scan))
        assert train_lm(*smoke, f"runs_root={root}") == 1
    assert f"error: {run / 'checkpoints'} cannot be read (Permission denied)" in capfd.readouterr().err
    assert rows(run) == rows(finished[1])
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert rows(run) == rows(finished[1])


@pytest.fixture(scope="module")
def another_seed(smoke, tmp_path_factory):
    """A finished run that differs from `finished` in its seed only: its directory."""
    root = tmp_path_factory.mktemp("another")
    assert train_lm(*smoke, "seed=2", f"runs_root={root}") == 0
    return only_run(root)


@pytest.mark.parametrize("mixed", [["checkpoints"], ["checkpoints", "metrics.jsonl"]])
def test_files_of_another_seed_are_refused(copied, smoke, another_seed, mixed, capfd):
    root, run = copied
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(another_seed / "checkpoints", run / "checkpoints")
    if "metrics.jsonl" in mixed:
        shutil.copy(another_seed / "metrics.jsonl", run)
    assert train_lm(*smoke, f"runs_root={root}") == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "belongs to a run of another config" in error


def test_a_checkpoint_of_another_seed_is_not_measured_or_exported(copied, another_seed):
    _, run = copied
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(another_seed / "checkpoints", run / "checkpoints")
    with pytest.raises(UserError, match="belongs to a run of another config"):
        load_run(run)
    with pytest.raises(UserError, match="belongs to a run of another config"):
        open_run(run)


def test_a_run_in_the_home_directory_is_loaded(copied, monkeypatch):
    _, run = copied
    monkeypatch.setenv("HOME", str(run.parent))
    assert load_run(f"~/{run.name}").step == load_run(run).step


def test_checkpoints_of_earlier_versions_are_resumed(copied, smoke, finished):
    """They carry neither the hash of the config nor a checksum of the log."""
    root, run = copied
    (run / "summary.json").unlink()
    stored = Checkpoints(run / "checkpoints")
    step, state = stored.latest()
    shutil.rmtree(run / "checkpoints")
    Checkpoints(run / "checkpoints").save(step, {k: v for k, v in state.items() if k != "metrics_check"}, best=True)
    path = next((run / "checkpoints").iterdir()) / "state.pt"
    assert torch.load(path, weights_only=True)["config_hash"] is None
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert rows(run) == rows(finished[1])


def test_only_damaged_checkpoints_are_an_error(copied, smoke, capfd):
    root, run = copied
    (run / "summary.json").unlink()
    for state in run.glob("checkpoints/*/state.pt"):
        state.write_bytes(b"")
    assert train_lm(*smoke, f"runs_root={root}") == 1
    error = capfd.readouterr().err
    assert "is damaged" in error
    assert "fresh=true" in error
    assert status(run)["state"] == "failed"
    assert "Traceback" in status(run)["traceback"]
    assert status(run)["step"] == 4

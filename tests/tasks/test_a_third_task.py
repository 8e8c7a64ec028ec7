"""A task is one file: this one learns the next values of a sine wave. It trains, resumes, evaluates, and has its row in
the table and its line in the report, with no other file knowing of it."""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fourierformer import tasks
from fourierformer.attention import Geometry
from fourierformer.config import RunSpec
from fourierformer.errors import Interrupted
from fourierformer.report import write_report
from fourierformer.results import collect, comparison, render_text
from fourierformer.runs.run import run_job
from fourierformer.tasks import Metric, Objective, Task
from tests.helpers.command_line import REPOSITORY

LENGTH, STEPS = 16, 12


# -- the task -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SineData:
    name: str
    noise: float


@dataclass(frozen=True, kw_only=True)
class SineModel:
    name: str
    dim: int


@dataclass(frozen=True, kw_only=True)
class SineEvaluation:
    waves: int


@dataclass(frozen=True, kw_only=True)
class SineSpec(RunSpec):
    data: SineData
    model: SineModel
    evaluation: SineEvaluation


class SineNet(nn.Module):
    def __init__(self, dim: int, attention):
        super().__init__()
        self.enter, self.attention, self.leave = nn.Linear(1, dim), attention, nn.Linear(dim, 1)

    def forward(self, x):
        return self.leave(self.attention(self.enter(x)))


class SineObjective(Objective):
    metric, primary, higher_is_better, unit, protocols = "rms", "valid_rms", False, "waves", ("noisy",)
    micro_steps, steps_per_epoch = 1, 4

    def __init__(self, spec: SineSpec, corpus):
        self.spec, self.corpus, self.samples_per_step = spec, corpus, spec.global_batch_size

    def waves(self, seed, count):
        generator = torch.Generator().manual_seed(seed)
        phase = 2 * math.pi * torch.rand((count, 1, 1), generator=generator)
        clean = torch.sin(phase + 0.5 * torch.arange(LENGTH + 1.0)[:, None])
        return clean[:, :-1] + self.spec.data.noise * torch.randn(clean[:, 1:].shape, generator=generator), clean[:, 1:]

    def micro_batches(self, step):
        yield self.waves(1000 + step, self.samples_per_step)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    @torch.inference_mode()
    def measure(self, model, split, protocol, poll, on_progress):
        poll()
        noisy, clean = self.waves({"valid": 1, "test": 2}[split], self.spec.evaluation.waves)
        return {"rms": (model(noisy) - clean).square().mean().sqrt().item(), "nll": 0.0, "waves": len(noisy)}

    def evaluate(self, model, poll, on_progress):
        return {"valid_rms": self.measure(model, "valid", "noisy", poll, on_progress)["rms"]}

    def notes(self):
        return ["waves are made up"]


class Sine(Task):
    name, script, spec, unit, short_unit = "sine", "train_sine.py", SineSpec, "waves", "wav"
    metrics = (Metric("rms", "root mean square error", "rms", 3),)
    protocols = preferred_protocols = ("noisy",)
    default_columns = (("valid", "noisy"), ("test", "noisy"))
    scored = ("waves",)
    limit_key = "waves"

    def primary(self, spec):
        return "rms"

    def geometry(self, spec):
        return Geometry(dim=spec.model.dim, heads=2, length=LENGTH, causal=True)

    def check_available(self, spec):
        pass

    def load_data(self, spec, say):
        return SimpleNamespace(name=spec.data.name, notes=[], splits={"valid": None, "test": None})

    def build_model(self, spec, attention, corpus):
        return SineNet(spec.model.dim, attention(self.geometry(spec)))

    def objective(self, spec, corpus, model, device, processes):
        return SineObjective(spec, corpus)

    def steps_per_epoch(self, spec, corpus):
        return SineObjective.steps_per_epoch

    def samples_per_step(self, spec):
        return spec.global_batch_size

    def activation_bytes(self, spec, micro_batch):
        return 40 * micro_batch * LENGTH * spec.model.dim

    def data_line(self, corpus):
        return "made up"

    def scored_text(self, numbers):
        return f"{numbers['waves']} waves scored"

    def measured_at_end(self, spec):
        return [("valid", "noisy"), ("test", "noisy")]


# -- what the rest of the program makes of it -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tasks.tasks()  # the built-in ones come first
    monkeypatch.setattr(tasks, "_tasks", dict(tasks._tasks))
    tasks.register(Sine())


def config(root, attention="softmax", **changes):
    values = {
        "task": "sine",
        "seed": 1,
        "global_batch_size": 6,
        "experiment_name": "waves",
        "runs_root": str(root),
        "run_dir": None,
        "init_from": None,
        "fresh": False,
        "dry_run": False,
        "is_debug": False,
        "attention": {"name": attention},
        "optim": {"name": "adam", "lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
        "schedule": {
            **{"name": "cosine", "warmup_steps": 2, "warmup_epochs": None, "warmup_start": 0.0, "min_lr": 0.0},
            "per_epoch": False,
        },
        "tracker": {
            "name": "none",
            "project": "x",
            "entity": None,
            "mode": "disabled",
            "tags": None,
            "artifact": False,
        },
        "trainer": {
            **{"steps": STEPS, "epochs": None, "eval_every": 4, "save_every": 4, "log_every": 2, "clip": 1.0},
            **{
                "patience": None,
                "max_bad_steps": 3,
                "micro_batch_size": None,
                "ema_decay": None,
                "keep_checkpoints": 2,
            },
            **{"device": "cpu", "precision": "fp32", "compile": "never", "deterministic": False},
        },
        "data": {"name": "made_up_waves", "noise": 0.1},
        "model": {"name": "sine_net", "dim": 8},
        "evaluation": {"waves": 20},
    }
    return OmegaConf.create(values | changes)


def only_run(root, attention="softmax"):
    (summary,) = root.glob(f"waves/sine_net-{attention}-*/summary.json")
    return summary.parent


def weights(run):
    checkpoint = max(run.glob("checkpoints/*"), key=lambda path: path.name)
    (file,) = checkpoint.glob("*.pt") if checkpoint.is_dir() else [checkpoint]
    return torch.load(file, weights_only=True)["model"]


def test_it_trains_and_has_its_row_in_table_and_report(tmp_path, capsys):
    for attention in ("softmax", "alibi"):
        run_job(config(tmp_path, attention))
    assert "20 waves scored" in capsys.readouterr().out
    runs = collect(tmp_path)
    text = render_text(comparison(runs))
    header = next(line for line in text.splitlines() if "waves/s" in line)
    assert "train time" in header
    assert "data wait" not in header
    rms = {row.attention: row.cell(("test", "noisy")).mean for row in comparison(runs)}
    assert set(rms) == {"softmax", "alibi"}
    assert all(f"{value:.3f}" in text for value in rms.values())
    summary = json.loads((only_run(tmp_path, "softmax") / "summary.json").read_text())
    assert (summary["waves"], summary["unit"]) == (STEPS * 6, "waves")
    page = write_report(runs, tmp_path / "report.html").read_text()
    assert "root mean square error" in page
    assert f"{rms['softmax']:.3f}" in page


def test_it_resumes_bit_by_bit(tmp_path, monkeypatch):
    run_job(config(tmp_path / "whole"))
    loss, calls = SineObjective.loss, []

    def stopping(self, model, batch):
        calls.append(1)
        if len(calls) == 7:
            raise Interrupted(15)
        return loss(self, model, batch)

    monkeypatch.setattr(SineObjective, "loss", stopping)
    with pytest.raises(Interrupted):
        run_job(config(tmp_path / "stopped"))
    run_job(config(tmp_path / "stopped"))
    assert len(calls) == STEPS + 1
    one, two = (weights(only_run(tmp_path / name)) for name in ("whole", "stopped"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_it_is_evaluated_again_and_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    run_job(config(tmp_path))
    run = only_run(tmp_path)
    capsys.readouterr()
    sys.modules.pop("evaluate", None)
    import evaluate

    arguments = {"split": "test", "protocol": None, "checkpoint": "best", "weights": "raw", "limit": 20}
    arguments |= {"word_swap": None, "context": None, "data": None}
    evaluate.evaluate(argparse.Namespace(run=run, data_root=None, device="cpu", **arguments))
    measured = json.loads((run / "summary.json").read_text())["results"]["test"]["noisy"]["rms"]
    out = capsys.readouterr().out
    assert f"rms {measured:.3f}" in out
    assert "noisy, 20 waves scored" in out
    run_job(config(tmp_path, dry_run=True))
    assert "12 steps of 6 waves = 72 waves = 3.0 epochs of 4 steps" in capsys.readouterr().out


def test_its_file_is_found_in_the_folder_and_its_objective_is_not_loaded(tmp_path, monkeypatch):
    source = f"from {__name__} import Sine\nfrom fourierformer import tasks\ntasks.register(Sine())"
    (tmp_path / "waves.py").write_text(source)
    (tmp_path / "waves_objective.py").write_text("raise AssertionError('loaded before a run is built')")
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
    del tasks._tasks["sine"]
    try:
        assert type(tasks.task_named("sine")).__name__ == "Sine"
    finally:
        sys.modules.pop("fourierformer.tasks.waves", None)

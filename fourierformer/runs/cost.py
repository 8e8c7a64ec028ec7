"""Estimates the time of a run: its seconds per step are those of an earlier run of the same config, or measured now."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fourierformer.config import RunSpec, from_yaml
from fourierformer.errors import UserError
from fourierformer.processes import Processes
from fourierformer.provenance import describe
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import build_parts, check_device, pick_device
from fourierformer.runs.spec import task_of
from fourierformer.runs.train import make_fit
from fourierformer.tasks import AnyCorpus
from fourierformer.tracking import NoTrackers
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.signals import StopSignal

ENOUGH_SECONDS, MOST_STEPS = 3.0, 10
CPU_SAMPLES = 8  # sequences or images in a measured step on a CPU, where its time is proportional to their number

_known: dict[tuple, "StepCost"] = {}


@dataclass(frozen=True)
class StepCost:
    seconds: float  # of device time: 4 for a step that takes one second on four GPUs
    origin: str

    def hours(self, steps: int) -> float:
        return self.seconds * steps / 3600


def hours_text(hours: float, device: str) -> str:
    if 0 < hours < 1:
        return f"{60 * hours:.1f} {device}-minutes"
    return f"{hours:,.{1 if hours < 100 else 0}f} {device}-hours"


def step_cost(spec: RunSpec, corpus: AnyCorpus | None) -> StepCost | None:
    """The cost of a step of this config on this machine, the same for all seeds; without its data measured on data
    that stands in for it, and None where there is nothing to stand in."""
    key = (spec.group, spec.directory.parent, spec.trainer.device)
    if key not in _known:
        data = corpus or task_of(spec).stand_in(spec)
        cost = _earlier(spec) or (_measured(spec, data) if data else None)
        if cost is None:
            return None
        _known[key] = cost
    return _known[key]


def _earlier(spec: RunSpec) -> StepCost | None:
    """The cost in a finished run with another seed, on the same kind of device of a machine like this one."""
    here, device = describe()[0], pick_device(spec.trainer.device).type
    for path in sorted(spec.directory.parent.glob("*/summary.json")):
        directory = RunDirectory(path.parent)
        try:
            summary, meta = directory.read_summary() or {}, directory.read_meta() or {}
        except UserError:  # damaged: that run will say so when it is asked for
            continue
        like_here = all(meta.get(key) == here[key] for key in ("cpu", "cpus", "gpus"))
        like_here = like_here and summary.get("device") == device and _compiled(directory) == spec.trainer.compile
        if like_here and summary.get("group") == spec.group and summary.get("steps") and summary.get("seconds"):
            seconds = summary["seconds"] * summary.get("processes", 1)
            return StepCost(seconds / summary["steps"], f"as in {directory.name}")
    return None


def _compiled(directory: RunDirectory) -> str:
    return from_yaml(directory.config)["trainer"]["compile"]


def _measured(spec: RunSpec, corpus: AnyCorpus) -> StepCost:
    """Measures the first steps of the run, without writing anything. The very first one is a warm-up, not measured."""
    check_device(spec)
    batch, micro = spec.global_batch_size, spec.trainer.micro_batch_size
    share = batch if pick_device(spec.trainer.device).type == "cuda" else min(batch, CPU_SAMPLES)
    trainer = replace(spec.trainer, micro_batch_size=micro and min(micro, share))
    smaller = task_of(spec).with_batch(spec, share) if share < batch else spec
    parts = build_parts(replace(smaller, trainer=trainer), Processes(), corpus=corpus)
    fit = make_fit(parts, NoTrackers(), Checkpoints(Path("never written")), StopSignal())
    try:
        parts.model.train()
        seconds, steps = _time_steps(fit, parts.device)
    finally:
        parts.objective.close()
    part = f" with {share} of {batch} rows" if share < batch else ""
    return StepCost(seconds / steps * batch / share, f"measured now, {steps} step{'s' * (steps > 1)}{part}")


def _time_steps(fit, device: torch.device) -> tuple[float, int]:
    fit.train_step()
    _wait_for(device)
    begin, steps = time.perf_counter(), 0
    while steps < MOST_STEPS and time.perf_counter() - begin < ENOUGH_SECONDS:
        fit.train_step()
        _wait_for(device)
        steps += 1
    return time.perf_counter() - begin, steps


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""How long a run will take: seconds per step as an earlier run of the same configuration had them, or measured now."""

import copy
import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fourierformer import config as configs
from fourierformer.provenance import describe
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import build, pick_device
from fourierformer.runs.train import make_fit
from fourierformer.tracking import NoTrackers
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.processes import Processes
from fourierformer.training.signals import StopSignal

ENOUGH_SECONDS, MOST_STEPS = 3.0, 10
CPU_SAMPLES = 8  # sequences or images; on a CPU the time of a step is proportional to them, and a whole step takes long


@dataclass(frozen=True)
class StepCost:
    seconds: float  # of one device: four GPUs that need one second each need four
    origin: str

    def hours(self, steps: int) -> float:
        return self.seconds * steps / 3600


def step_cost(values: dict) -> StepCost:
    """For the configuration of `values` on this machine; its data must be there. Seeds cost the same."""
    return _step_cost(json.dumps(values | {"seed": 0}))


@cache
def _step_cost(text: str) -> StepCost:
    values = json.loads(text)
    return _earlier(values) or _measured(values)


def _earlier(values: dict) -> StepCost | None:
    """From a finished run with another seed on a machine like this one."""
    group, here = configs.config_hash(values, seed=False), describe()[0]
    for path in sorted(configs.run_directory(values).parent.glob("*/summary.json")):
        directory = RunDirectory(path.parent)
        summary, meta = directory.read_summary() or {}, directory.read_meta() or {}
        like_here = all(meta.get(key) == here[key] for key in ("cpu", "cpus", "gpus"))
        if like_here and summary.get("group") == group and summary.get("steps") and summary.get("seconds"):
            seconds = summary["seconds"] * summary.get("processes", 1)
            return StepCost(seconds / summary["steps"], f"as in {directory.name}")
    return None


def _measured(values: dict) -> StepCost:
    """The first steps of the run, without a trace of it. The very first one warms up and does not count."""
    values, batch = copy.deepcopy(values), values["global_batch_size"]
    share = batch if pick_device(values["trainer"]["device"]).type == "cuda" else min(batch, CPU_SAMPLES)
    values["global_batch_size"] = share
    micro = values["trainer"]["micro_batch_size"]
    values["trainer"]["micro_batch_size"] = micro and min(micro, share)
    parts = build(values, Processes(), say=lambda line: None)
    fit = make_fit(parts, NoTrackers(), Checkpoints(Path("never written")), StopSignal())
    try:
        parts.model.train()
        seconds, steps = _time_steps(fit, parts.device)
    finally:
        parts.task.close()
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

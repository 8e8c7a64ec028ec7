"""What a run measured: every split under every protocol, each kept as soon as it is known; then its summary."""

import json
import resource
from pathlib import Path

import torch

from fourierformer import config as configs
from fourierformer.errors import UserError
from fourierformer.files import atomic_write_text, read_json
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import Parts, domain
from fourierformer.tasks.base import Poll, Watch
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import Progress
from fourierformer.training.precision import autocast
from fourierformer.training.processes import Processes


def read_or_none(path: Path) -> dict | None:
    """For files that the run can write again: a damaged one is named and counts as not there."""
    try:
        stored = read_json(path)
    except UserError as error:
        print(f"{error} It is written anew.")
        return None
    return stored if isinstance(stored, dict) else None


class Measurements:
    """evaluation.json: {"step": 600, "results": {"valid": {"sliding": {...}}}}. Numbers of another step are dropped."""

    def __init__(self, path: Path, step: int, processes: Processes):
        self.path, self.step, self.processes = path, step, processes
        stored = processes.on_first(lambda: read_or_none(path)) or {}
        self.results: dict[str, dict[str, dict]] = stored.get("results", {}) if stored.get("step") == step else {}

    def add(self, split: str, protocol: str, numbers: dict) -> None:
        self.results.setdefault(split, {})[protocol] = numbers
        text = json.dumps({"step": self.step, "results": self.results}, indent=2) + "\n"
        self.processes.on_first(lambda: atomic_write_text(self.path, text))


def measure_text(
    parts: Parts, checkpoints: Checkpoints, directory: RunDirectory, poll: Poll, watch: Watch
) -> dict[str, dict]:
    """A language model's best checkpoint under every split and protocol; finished measurements survive a stop in a
    later one."""
    step, state = checkpoints.best() or checkpoints.latest()
    parts.model.load_state_dict(state["model"])
    measurements = Measurements(directory.path / "evaluation.json", step, parts.processes)
    wanted = parts.values["evaluation"]
    with autocast(parts.device, parts.trainer.precision):
        for split in wanted["splits"]:
            for protocol in wanted["protocols"]:
                if protocol not in measurements.results.get(split, {}):
                    numbers = parts.task.measure(parts.model, split, protocol, poll, watch)
                    measurements.add(split, protocol, numbers)
    return measurements.results


def measured_images(progress: Progress, task) -> dict[str, dict]:
    """Every evaluation of images sees the whole validation split, so the records of training are the results."""
    count = {"images": task.validation_images}
    prefix = "valid_"
    return {
        "valid": {
            name: {"nll" if key == "valid_loss" else key.removeprefix(prefix): value for key, value in record.items()}
            | count
            for name, record in progress.records.items()
        }
    }


def identity(values: dict) -> dict:
    """What a run is, known before it starts."""
    return {
        "experiment": values["experiment_name"],
        "task": values["task"],
        "model": values["model"]["name"],
        "attention": values["attention"]["name"],
        "data": values["data"]["name"],
        "seed": values["seed"],
        "primary": domain(values).primary(values),
        "config_hash": configs.config_hash(values),
        "group": configs.config_hash(values, seed=False),
        "debug": values["is_debug"],
    }


def run_summary(directory: RunDirectory, parts: Parts, progress: Progress, results: dict, meta: dict) -> dict:
    task, values = parts.task, parts.values
    seconds = max(progress.train_seconds, 1e-9)
    samples = task.samples_after(progress.step)
    best = progress.records.get("best", {})
    return {
        "schema": 1,
        "run": directory.name,
        **identity(values),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "steps": progress.step,
        "unit": task.unit,
        task.unit: samples,
        "best": {"step": best.get("step", 0), task.primary: best.get(task.primary)},
        "results": results,
        "bad_steps": progress.bad_steps,
        "seconds": round(progress.train_seconds, 1),
        f"{task.unit}_per_s": round(samples / seconds, 1),
        "data_wait": round(progress.wait_seconds / seconds, 4),
        "processes": parts.processes.world,
        "peak_memory_bytes": peak_memory(parts.device),
        "attention_backend": parts.backend,
        "commit": meta.get("commit"),
        "dirty": meta.get("dirty"),
        "notes": [*parts.corpus.notes, *task.notes()],
    }


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or of the whole process on a CPU (ru_maxrss counts KiB on Linux)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def for_watchers(summary: dict) -> dict:
    metric = summary["primary"]
    final = {
        f"final/{split}_{protocol}_{name}": value
        for split, protocols in summary["results"].items()
        for protocol, numbers in protocols.items()
        for name, value in numbers.items()
        if name in (metric, "top5")
    }
    cost = {name: summary[name] for name in ("parameters", "seconds", f"{summary['unit']}_per_s")}
    best = {f"best/val_{metric}": summary["best"][f"valid_{metric}"], "best/step": summary["best"]["step"]}
    return best | final | cost

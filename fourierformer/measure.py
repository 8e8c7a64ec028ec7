"""What a run measured: every split under every protocol, each kept as soon as it is known; then its summary."""

import json
import resource
from pathlib import Path

import torch

from fourierformer import config as configs
from fourierformer.build import Parts
from fourierformer.errors import UserError
from fourierformer.rundir import RunDirectory, atomic_write_text, read_json
from fourierformer.tasks.base import Poll, Watch
from fourierformer.training.loop import Progress


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

    def __init__(self, path: Path, step: int):
        self.path, self.step = path, step
        stored = read_or_none(path) or {}
        self.results: dict[str, dict[str, dict]] = stored.get("results", {}) if stored.get("step") == step else {}

    def add(self, split: str, protocol: str, numbers: dict) -> None:
        self.results.setdefault(split, {})[protocol] = numbers
        atomic_write_text(self.path, json.dumps({"step": self.step, "results": self.results}, indent=2) + "\n")


def measure_all(task, model, evaluation: dict, measurements: Measurements, poll: Poll, watch: Watch) -> None:
    for split in evaluation["splits"]:
        for protocol in evaluation["protocols"]:
            if protocol not in measurements.results.get(split, {}):
                measurements.add(split, protocol, task.measure(model, split, protocol, poll, watch))


def identity(values: dict) -> dict:
    """What a run is, known before it starts."""
    return {
        "experiment": values["experiment_name"],
        "model": values["model"]["name"],
        "attention": values["attention"]["name"],
        "data": values["data"]["name"],
        "seed": values["seed"],
        "primary": "ppl" if values["data"]["unit"] == "word" else "bpc",
        "config_hash": configs.config_hash(values),
        "group": configs.config_hash(values, seed=False),
        "debug": values["is_debug"],
    }


def run_summary(
    directory: RunDirectory, parts: Parts, progress: Progress, measurements: Measurements, meta: dict
) -> dict:
    task, values = parts.task, parts.values
    return {
        "schema": 1,
        "run": directory.name,
        **identity(values),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "steps": progress.step,
        "tokens": task.tokens_after(progress.step),
        "best": {"step": progress.best_step, task.primary: progress.best},
        "results": measurements.results,
        "bad_steps": progress.bad_steps,
        "seconds": round(progress.train_seconds, 1),
        "tokens_per_s": round(task.tokens_after(progress.step) / max(progress.train_seconds, 1e-9), 1),
        "peak_memory_bytes": peak_memory(parts.device),
        "attention_backend": parts.model.layers[0].attention.backend_name(parts.device),
        "commit": meta.get("commit"),
        "dirty": meta.get("dirty"),
        "notes": parts.corpus.notes,
    }


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or of the whole process on a CPU (ru_maxrss counts KiB on Linux)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def for_watchers(summary: dict, metric: str) -> dict:
    final = {
        f"final/{split}_{protocol}_{metric}": numbers[metric]
        for split, protocols in summary["results"].items()
        for protocol, numbers in protocols.items()
    }
    return {f"best/val_{metric}": summary["best"][f"valid_{metric}"], "best/step": summary["best"]["step"], **final}

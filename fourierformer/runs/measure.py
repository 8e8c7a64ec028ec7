"""Measure a trained run, every split under every protocol, write each result at once, and build its summary."""

import contextlib
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from fourierformer.config import RunSpec
from fourierformer.errors import UserError
from fourierformer.printing import echo
from fourierformer.processes import Processes
from fourierformer.runs.cpu import return_freed_memory
from fourierformer.runs.directory import RunDirectory, readable
from fourierformer.runs.parts import RunObjects, refuse_other_shapes
from fourierformer.runs.spec import task_of
from fourierformer.runs.state import measured_in
from fourierformer.tasks import OnProgress, Poll, task_named
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import Progress
from fourierformer.training.precision import autocast


class Measurements:
    """evaluation.json of one step, {"step": 600, "results": {"valid": {"sliding": {...}}}}; others are dropped."""

    def __init__(self, directory: RunDirectory, step: int, processes: Processes):
        self.directory, self.step, self.processes = directory, step, processes
        stored = processes.on_first(lambda: readable(directory.evaluation, echo))
        self.results = measured_in(stored) if stored.get("step") == step else {}

    def add(self, split: str, protocol: str, numbers: dict) -> None:
        self.results.setdefault(split, {})[protocol] = numbers
        content = {"step": self.step, "results": self.results}
        self.processes.on_first(lambda: self.directory.write(self.directory.evaluation, content))


def measure_best(
    parts: RunObjects,
    checkpoints: Checkpoints,
    progress: Progress,
    directory: RunDirectory,
    poll: Poll,
    on_progress: OnProgress,
    on_begin: Callable[[str, str], None],
) -> dict[str, dict]:
    """Measure the best checkpoint on every split and under every protocol of the config. Finished measurements are not
    repeated after a stop. `on_begin` gets split and protocol of each that begins. UserError where an older one would
    stand in for the best one."""
    wanted = parts.task.measured_at_end(parts.spec)
    if not wanted:
        return {}
    checkpoint = checkpoints.best() or checkpoints.latest()
    assert checkpoint is not None  # the loop has saved its last step
    step, state = checkpoint
    if step != (best := progress.records["best"]["step"]):
        way_out = "Restore it from a copy, and the same command measures it; or start again with fresh=true."
        raise UserError(f"The best checkpoint, of step {best:,}, is damaged: nothing is measured. {way_out}")
    with refuse_other_shapes(directory.path):
        parts.model.load_state_dict(state["model"])
    measurements = Measurements(directory, step, parts.processes)
    with autocast(parts.device, parts.trainer.precision):
        for split, protocol in wanted:
            if protocol not in measurements.results.get(split, {}):
                on_begin(split, protocol)
                numbers = parts.objective.measure(parts.model, split, protocol, poll, on_progress)
                measurements.add(split, protocol, numbers)
    return measurements.results


def identity(spec: RunSpec) -> dict:
    """The keys of a summary that are known before the run starts."""
    return {
        "experiment": spec.experiment_name,
        "task": spec.task,
        "model": spec.model.name,
        "attention": spec.attention.name,
        "data": spec.data.name,
        "seed": spec.seed,
        "primary": task_of(spec).primary(spec),
        "config_hash": spec.hash,
        "group": spec.group,
        "debug": spec.is_debug,
    }


def run_summary(
    directory: RunDirectory, parts: RunObjects, progress: Progress, results: dict, meta: dict, has_trained: bool
) -> dict:
    """The content of summary.json. Where this start has measured only, the machine that has trained stays in it, since
    `seconds` are that one's."""
    machine = {
        "processes": parts.processes.world,
        "device": parts.device.type,
        "peak_memory_bytes": peak_memory(parts.device),
        "attention_backend": parts.backend,
    }
    before = {} if has_trained else parts.processes.on_first(lambda: readable(directory.summary))
    objective, unit = parts.objective, parts.task.unit
    seconds = max(progress.train_seconds, 1e-9)
    samples = objective.samples_after(progress.step)
    best = progress.records.get("best", {})
    return {
        "schema": 1,
        "run": directory.name,
        **identity(parts.spec),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "steps": progress.step,
        "unit": unit,
        unit: samples,
        "best": {"step": best.get("step", 0), objective.primary: best.get(objective.primary)},
        "results": results,
        "bad_steps": progress.bad_steps,
        "seconds": round(progress.train_seconds, 1),
        f"{unit}_per_s": round(samples / seconds, 1),
        "data_wait": round(progress.wait_seconds / seconds, 4),
        **{key: before.get(key, value) for key, value in machine.items()},
        "commit": meta.get("commit"),
        "dirty": meta.get("dirty"),
        "notes": [*parts.corpus.notes, *objective.notes()],
    }


def reset_peak_memory() -> None:
    """Reset `peak_memory`, for the next run of a sweep in one process."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):  # trainer.device=cuda:1 does not make it the current one
            torch.cuda.reset_peak_memory_stats(device)
    return_freed_memory()  # the earlier run's, which would count as this one's
    with contextlib.suppress(OSError):  # on Linux only, and not in every container
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """The most memory in use so far, in bytes: of the GPU's allocator, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE):
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def final_numbers(summary: dict) -> dict:
    """The numbers of a summary for wandb, under the names shown there."""
    metric, task = summary["primary"], task_named(summary["task"])
    final = {
        f"final/{split}_{protocol}_{name}": value
        for split, protocols in summary["results"].items()
        for protocol, numbers in protocols.items()
        for name, value in numbers.items()
        if name in (metric, *task.secondary_metrics)
    }
    cost = {name: summary[name] for name in ("parameters", "seconds", f"{summary['unit']}_per_s")}
    best = {f"best/valid_{metric}": summary["best"][f"valid_{metric}"], "best/step": summary["best"]["step"]}
    return best | final | cost

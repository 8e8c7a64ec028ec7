"""One run, from a composed config to summary.json. The same command finds its run directory again and goes on there."""

import resource
import traceback
import uuid
from dataclasses import dataclass
from functools import partial

import torch
from omegaconf import DictConfig

from fourierformer import config as configs
from fourierformer.build import Parts, build, checked_values
from fourierformer.data.text import TextData, check_available
from fourierformer.errors import Diverged, Interrupted, SetupError, UserError
from fourierformer.launch import JobFailed, complain, in_sweep, record_job, show
from fourierformer.measure import Measurements, measure_all
from fourierformer.plan import print_plan
from fourierformer.rundir import RunDirectory, atomic_write_text
from fourierformer.tracking import Trackers, build_trackers
from fourierformer.tracking.console import ConsoleTracker
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import Fit, Progress
from fourierformer.training.optim import OptimConfig, build_optimizer
from fourierformer.training.precision import autocast
from fourierformer.training.schedule import ScheduleConfig, learning_rate
from fourierformer.training.seeding import seed_everything
from fourierformer.training.signals import StopSignal, exit_code


def main(config: DictConfig) -> None:
    """The job Hydra calls: ends well, or says in one line what was wrong and raises JobFailed."""
    try:
        values = checked_values(config)
        if values["dry_run"]:
            print_plan(values)
            return
        _run(values)
    except UserError as error:
        raise JobFailed(complain(error, error.exit_code)) from None
    except Exception:
        traceback.print_exc()
        raise JobFailed(1) from None


def _run(values: dict) -> None:
    directory = RunDirectory(configs.run_directory(values))
    record_job(directory.path)
    check_available(TextData(**values["data"]))
    if values["fresh"] and (aside := directory.set_aside()):
        print(f"fresh=true: the earlier run is now {aside}")
    with directory.lock():
        if _already_done(directory, values):
            print(f"already done: {directory.path} (fresh=true runs it again)")
        else:
            with StopSignal() as stop, _status(directory):
                _train_and_measure(values, directory, stop)
    if not in_sweep():
        show([directory.path], report=directory.path / "report.html")


def _already_done(directory: RunDirectory, values: dict) -> bool:
    """Also refuses a directory that holds a run of another config (possible with run_dir=)."""
    if not directory.config.exists():
        return False
    changed = configs.differences(configs.from_yaml(directory.config), values)
    if changed:
        raise SetupError(
            f"{directory.path} holds a run of another config: {'; '.join(changed)}. "
            "Choose another run_dir=, or fresh=true to move that run aside."
        )
    return (directory.read_status() or {}).get("state") == "completed" and directory.summary.exists()


class _status:
    """Keeps status.json true however the run ends."""

    def __init__(self, directory: RunDirectory):
        self.directory = directory

    def __enter__(self):
        self.directory.write_status("running")

    def __exit__(self, kind, error, trace):
        if error is None:
            self.directory.write_status("completed")
            return
        state = {Diverged: "diverged", Interrupted: "interrupted"}.get(kind, "failed")
        text = "".join(traceback.format_exception(kind, error, trace))
        self.directory.write_status(state, error=f"{kind.__name__}: {error}", traceback=text)


@dataclass
class _Watchers:
    trackers: Trackers
    console: ConsoleTracker


def _train_and_measure(values: dict, directory: RunDirectory, stop: StopSignal) -> None:
    seed_everything(values["seed"])
    atomic_write_text(directory.config, configs.to_yaml(values))
    # the summary's keys already now: a run that fails must be found in the right row of a table
    meta = directory.write_meta(**_identity(values))
    parts = build(values)
    print(headline(values, parts, directory))
    checkpoints = Checkpoints(directory.checkpoints, keep=parts.trainer.keep_checkpoints)
    found = checkpoints.latest()
    watchers = _watchers(values, directory, parts, step=found[0] if found else 0)
    checkpoints.say = watchers.console.say
    code = 1
    try:
        progress = _fit(parts, directory, watchers, checkpoints, found, stop)
        measurements = _measure_best(parts, directory, watchers, checkpoints, progress, stop)
        summary = _summary(values, directory, parts, progress, measurements, meta)
        directory.write_summary(summary)
        watchers.trackers.summary(_for_watchers(summary, parts.task.metric))
        code = 0
    except Interrupted as interrupted:
        code = exit_code(interrupted.signal_number)
        watchers.console.say(f"stopped; the same command resumes {directory.path}")
        raise
    finally:
        watchers.trackers.close(code)


def headline(values: dict, parts: Parts, directory: RunDirectory) -> str:
    parameters = sum(p.numel() for p in parts.model.parameters())
    backend = parts.model.layers[0].attention.backend_name(parts.device)
    notes = "".join(f"\n  note: {note}" for note in parts.corpus.notes)
    names = {group: values[group]["name"] for group in ("model", "attention", "data")}
    return (
        f"{names['model']} with {names['attention']} attention ({backend}) on {names['data']}: "
        f"{parameters:,} parameters, {parts.trainer.steps:,} steps of {parts.task.tokens_per_step:,} tokens, "
        f"{parts.device} {parts.trainer.precision}\n  {directory.path}{notes}"
    )


def _watchers(values: dict, directory: RunDirectory, parts: Parts, step: int) -> _Watchers:
    console = ConsoleTracker(
        parts.trainer.steps,
        parts.task.tokens_per_step,
        values["attention"]["name"],
        step=step,
        perplexity=parts.task.metric == "ppl",
    )
    tracker, wandb = values["tracker"], None
    model, attention = values["model"]["name"], values["attention"]["name"]
    if tracker["name"] == "wandb":
        wandb = {
            "run_dir": directory.path,
            "project": tracker["project"],
            "entity": tracker["entity"],
            "mode": tracker["mode"],
            "name": f"{model}-{attention}-s{values['seed']}",
            "group": f"{model}/{attention}/{configs.config_hash(values, seed=False)}",
            "job_type": "debug" if values["is_debug"] else "train",
            "tags": [values["experiment_name"], values["data"]["name"], attention],
            "run_id": _wandb_id(directory),
            "config": values,
        }
    return _Watchers(build_trackers(directory.metrics, console=console, wandb=wandb, say=console.say), console)


def _wandb_id(directory: RunDirectory) -> str:
    """The same for every start of this run, another after fresh=true: so it is drawn once and kept in the directory."""
    path = directory.path / "wandb_id"
    if not path.exists():
        atomic_write_text(path, uuid.uuid4().hex[:12])
    return path.read_text().strip()


def _fit(parts: Parts, directory: RunDirectory, watchers: _Watchers, checkpoints, found, stop) -> Progress:
    trainer, model = parts.trainer, parts.model
    ema = None
    if trainer.ema_decay is not None:
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(trainer.ema_decay))
    optim = OptimConfig(**parts.values["optim"])
    schedule = ScheduleConfig(**parts.values["schedule"])

    def heartbeat(progress: Progress) -> None:
        directory.write_status("running", step=progress.step, steps=trainer.steps)

    fit = Fit(
        task=parts.task,
        model=model,
        ema=ema,
        optimizer=build_optimizer(model, optim),
        rate=partial(learning_rate, steps=trainer.steps, peak=optim.lr, config=schedule),
        config=trainer,
        seed=parts.values["seed"],
        device=parts.device,
        tracker=watchers.trackers,
        checkpoints=checkpoints,
        stop=stop,
        watch=watchers.console.evaluating,
        on_log=heartbeat,
    )
    if found:
        step, state = found
        fit.restore(state)
        watchers.console.say(f"resuming at step {step:,} of {trainer.steps:,}")
    else:
        watchers.trackers.rewind(0)  # rows of a start that died before its first checkpoint
    progress = fit.run()
    heartbeat(progress)
    return progress


def _measure_best(parts: Parts, directory, watchers: _Watchers, checkpoints, progress: Progress, stop) -> Measurements:
    """The best checkpoint under every split and protocol; finished measurements survive a stop in a later one."""
    step, state = checkpoints.best() or checkpoints.latest()
    parts.model.load_state_dict(state["model"])
    measurements = Measurements(directory.path / "evaluation.json", step)
    with autocast(parts.device, parts.trainer.precision):
        measure_all(
            parts.task, parts.model, parts.values["evaluation"], measurements, stop.poll, watchers.console.evaluating
        )
    return measurements


def _identity(values: dict) -> dict:
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


def _summary(values: dict, directory, parts: Parts, progress: Progress, measurements: Measurements, meta: dict) -> dict:
    task = parts.task
    return {
        "schema": 1,
        "run": directory.name,
        **_identity(values),
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


def _for_watchers(summary: dict, metric: str) -> dict:
    final = {
        f"final/{split}_{protocol}_{metric}": numbers[metric]
        for split, protocols in summary["results"].items()
        for protocol, numbers in protocols.items()
    }
    return {f"best/val_{metric}": summary["best"][f"valid_{metric}"], "best/step": summary["best"]["step"], **final}

"""Build, resume, train, measure and summarise one run, and keep its status. The caller, run.py, holds the lock."""

import contextlib
import os
import re
import traceback
import uuid
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fourierformer.config import RunSpec, to_yaml
from fourierformer.errors import Diverged, Interrupted, SetupError, UserError
from fourierformer.files import read_json, require_small
from fourierformer.processes import Processes
from fourierformer.provenance import code_of_packages
from fourierformer.runs.directory import Heartbeat, RunDirectory
from fourierformer.runs.job_names import Name, values_of_command
from fourierformer.runs.measure import (
    final_numbers,
    identity,
    measure_best,
    peak_memory,
    reset_peak_memory,
    run_summary,
)
from fourierformer.runs.parts import RunObjects, build_parts, config_notes, refuse_other_shapes, start_from
from fourierformer.runs.state import check_same_data
from fourierformer.seeds import seed_everything
from fourierformer.tracking import NoTrackers, Trackers, build_trackers
from fourierformer.tracking.console import ConsoleTracker
from fourierformer.training.average import MovingAverage
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import Progress, TrainingLoop
from fourierformer.training.optim import build_optimizer
from fourierformer.training.schedule import learning_rate
from fourierformer.training.signals import StopSignal, exit_code

LONGEST_GROUP = 128  # characters that wandb takes
_noted: set[str] = set()  # notes on data that this process has printed


def train(spec: RunSpec, directory: RunDirectory, stop: StopSignal, processes: Processes, name: Name) -> None:
    """Train the run to its last step and measure it. status.json has the outcome."""
    with _status(directory) if processes.first else contextlib.nullcontext():
        stop.poll()
        _train_and_measure(spec, directory, stop, processes, name)


def _train_and_measure(
    spec: RunSpec, directory: RunDirectory, stop: StopSignal, processes: Processes, name: Name
) -> None:
    seed_everything(spec.seed)
    reset_peak_memory()
    meta = processes.on_first(lambda: _describe(spec, directory)) or {}
    parts = build_parts(spec, processes, name.say)
    parts.objective.check_evaluate()
    for split, protocol in parts.task.measured_at_end(spec):
        parts.objective.check_measure(split, protocol)
    if processes.first:
        name.say(start_sentence(parts))
    checkpoints = Checkpoints(directory.checkpoints, keep=parts.trainer.keep_checkpoints, config_hash=spec.hash)
    checkpoint = _same_everywhere(checkpoints, processes)
    console = _console(parts, name, step=checkpoint[0] if checkpoint else 0) if processes.first else None
    checkpoints.say = say = console.say if console else ignore
    heartbeat = Heartbeat(directory)

    def on_progress(label: str, done: int, total: int) -> None:
        if console:
            heartbeat.beat()
            console.evaluating(label, done, total)

    on_begin = console.measuring if console else ignore
    trackers = _trackers(parts, directory, checkpoints, console, name) if console else NoTrackers()
    code = 1
    try:
        progress = _fit(parts, directory, trackers, checkpoints, checkpoint, stop, on_progress, heartbeat, say)
        results = parts.objective.from_training(progress.records)
        measured = measure_best(parts, checkpoints, progress, directory, stop.poll, on_progress, on_begin)
        for split, protocols in measured.items():
            results[split] = results.get(split, {}) | protocols
        has_trained = checkpoint is None or checkpoint[0] < progress.step
        summary = run_summary(directory, parts, progress, results, meta, has_trained)
        # with the number of logged rows, by which a reader detects lost rows
        processes.on_first(lambda: directory.write(directory.summary, summary | {"logged_rows": trackers.metrics.rows}))
        trackers.summary(final_numbers(summary))
        code = 0
    except Interrupted as interrupted:
        code = exit_code(interrupted.signal_number)
        saved = f" at step {step:,}" if (step := checkpoints.newest_step()) else ""
        again = "the same command without fresh=true" if spec.fresh else "the same command"
        say(f"stopped{saved}; {again} resumes {directory.path}")
        raise
    finally:
        parts.objective.close()
        trackers.close(code)


def _keep_facts(parts: RunObjects, directory: RunDirectory, origin: dict) -> None:
    """Write the fingerprint that a resumed run is compared with, the origin of the first weights, and the facts that a
    user of the model needs."""
    known = read_json(directory.meta) or {}
    directory.write(directory.meta, known | origin | {"data_fingerprint": parts.data_fingerprint})
    facts = parts.task.data_facts(parts.corpus)
    if facts is not None:
        directory.write(directory.data_facts, facts)


def _describe(spec: RunSpec, directory: RunDirectory) -> dict:
    directory.write(directory.config, to_yaml(spec.values))
    # repeats the summary's keys, so that failed runs appear in tables
    chosen = [values for key, values in spec.values.items() if key.endswith("attention") and isinstance(values, dict)]
    names = [name for values in chosen for name in (values["name"], *(values.get("pattern") or []))]  # of `hybrid`
    code = code_of_packages(names)
    further = {"attention_code": code, "slurm_job": os.environ.get("SLURM_JOB_ID")}
    return directory.write_meta(**identity(spec), **{key: value for key, value in further.items() if value})


def ignore(*arguments) -> None:
    """Discard the output of all processes but the first."""


def _same_everywhere(checkpoints: Checkpoints, processes: Processes) -> tuple[int, dict] | None:
    """The newest checkpoint, read by every process. SetupError unless all of them read the same."""
    checkpoint = checkpoints.latest()
    own_step = checkpoint[0] if checkpoint else 0
    step = processes.on_first(lambda: own_step)
    if step != own_step:
        raise SetupError(
            f"process {processes.rank} does not find the checkpoint of step {step} in {checkpoints.directory}: the run "
            "directory must be on a file system that all nodes share (runs_root=/shared/path)"
        )
    return checkpoint


def start_sentence(parts: RunObjects) -> str:
    parameters = sum(p.numel() for p in parts.model.parameters())
    new = [note for note in parts.corpus.notes if note not in _noted]  # jobs of a sweep have the same text
    _noted.update(new)
    new += config_notes(parts.spec, parts.objective.steps_per_epoch)
    notes = "".join(f"\n  note: {note}" for note in new)
    spec, world = parts.spec, parts.processes.world
    return (
        f"{spec.model.name} with {spec.attention.name} attention (backend {parts.backend}) on {spec.data.name}: "
        f"{parameters:,} parameters, {parts.trainer.steps:,} steps of {parts.objective.samples_per_step:,} "
        f"{parts.task.unit}, {parts.device} {parts.trainer.precision}"
        f"{f', {world} processes' if world > 1 else ''}{notes}"
    )


def _console(parts: RunObjects, name: Name, step: int) -> ConsoleTracker:
    return ConsoleTracker(
        parts.trainer.steps,
        parts.objective.samples_per_step,
        name.label or parts.spec.attention.name,
        prefix=name.prefix,
        step=step,
        task=parts.task,
        metric=parts.objective.metric,
        eval_every=parts.trainer.eval_every,
        memory=partial(peak_memory, parts.device),
    )


def _trackers(
    parts: RunObjects, directory: RunDirectory, checkpoints: Checkpoints, console: ConsoleTracker, name: Name
) -> Trackers:
    spec, wandb, trackio = parts.spec, None, None
    tracker, model, attention = spec.tracker, spec.model.name, spec.attention.name
    common = {
        "project": tracker.project,
        "name": f"{model}-{attention}-s{spec.seed} {name.differs}".strip(),
        "group": f"{spec.data.name}/{model}/{attention}/{spec.group} {values_of_command()}".strip()[:LONGEST_GROUP],
        "config": spec.values,
        "samples": (parts.task.unit, parts.objective.samples_after),
    }
    if tracker.name == "wandb":
        wandb = common | {
            "dir": str(directory.path),
            "entity": tracker.entity,
            "mode": tracker.mode,
            "job_type": "debug" if spec.is_debug else "train",
            "tags": [spec.experiment_name, spec.data.name, attention, *(tracker.tags or [])],
            "id": wandb_id(directory),
            "artifact": checkpoints.best_path if tracker.artifact else None,
        }
    if tracker.name == "trackio":  # which has no ids: a resumed run is found by its name, also if spelled differently
        trackio = common | {"name": f"{model}-{attention}-s{spec.seed} {spec.hash} {wandb_id(directory)[:4]}"}
    return build_trackers(directory.metrics, console=console, wandb=wandb, trackio=trackio, say=console.say)


def wandb_id(directory: RunDirectory) -> str:
    """The run's id in wandb: drawn once and kept in the directory, so that a resumed run keeps it and a fresh one draws
    another. In a wandb sweep its agent chooses the id, and waits for a run of this id."""
    if os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"):
        return os.environ["WANDB_RUN_ID"]
    with contextlib.suppress(OSError, ValueError):
        require_small(directory.wandb_id)
        stored = directory.wandb_id.read_text().strip()
        if re.fullmatch("[0-9a-f]{12}", stored):
            return stored
    drawn = uuid.uuid4().hex[:12]
    with contextlib.suppress(UserError):  # wandb never stops a training
        directory.write(directory.wandb_id, drawn)
    return drawn


def backend_of(parts: RunObjects) -> str:
    """The implementation of the attention and its device, as a checkpoint remembers it."""
    return f"{parts.backend} on {parts.device.type}"


def check_same_backend(recorded: object, parts: RunObjects, run: Path) -> None:
    """SetupError where a run would go on with another implementation on the same kind of device, because the cache of
    a kernel is full, for example: its weights would differ from those of an undisturbed run. Earlier versions recorded
    none; another device is the user's choice."""
    before, _, device = str(recorded).partition(" on ")
    if device == parts.device.type and before != parts.backend:
        raise SetupError(
            f"{run} was trained with the attention's backend '{before}', and here only '{parts.backend}' can run "
            "(`python scripts/doctor.py` gives the reason): its weights would not be those of an undisturbed run. Make "
            f"'{before}' available, and the same command resumes; or start again with fresh=true."
        )


def make_loop(
    parts: RunObjects, trackers, checkpoints, stop, *, on_progress=ignore, on_log=ignore, on_advice=warnings.warn
) -> TrainingLoop:
    """The loop for these parts, at step 0."""
    trainer, model, spec = parts.trainer, parts.model, parts.spec
    lengths = {"steps": trainer.steps, "steps_per_epoch": parts.objective.steps_per_epoch}
    rate = partial(learning_rate, peak=spec.optim.lr, config=spec.schedule, **lengths)
    return TrainingLoop(
        objective=parts.objective,
        model=model,
        ema=None if trainer.ema_decay is None else MovingAverage(model, trainer.ema_decay),
        optimizer=build_optimizer(model, spec.optim),
        rate=rate,
        config=trainer,
        seed=spec.seed,
        device=parts.device,
        tracker=trackers,
        checkpoints=checkpoints,
        stop=stop,
        data_fingerprint=parts.data_fingerprint,
        backend=backend_of(parts),
        processes=parts.processes,
        on_progress=on_progress,
        on_log=on_log,
        on_advice=on_advice,
    )


def _fit(
    parts: RunObjects, directory: RunDirectory, trackers, checkpoints, checkpoint, stop, on_progress, heartbeat, say
) -> Progress:
    """Train to the last step, from a checkpoint (step, state) if there is one."""
    steps, on_first = parts.trainer.steps, parts.processes.on_first

    def position(progress: Progress) -> dict:
        return {"step": progress.step, "steps": steps, "seconds": round(progress.train_seconds, 1)}

    def on_log(progress: Progress) -> None:
        if parts.processes.first:
            heartbeat.beat(**position(progress))

    def advise(text: str) -> None:
        say(f"note: {text}")

    origin = {}
    if parts.spec.init_from and not checkpoint:  # before the loop, whose averaged weights begin as these
        origin = start_from(parts, Path(parts.spec.init_from))
    loop = make_loop(parts, trackers, checkpoints, stop, on_progress=on_progress, on_log=on_log, on_advice=advise)
    if checkpoint:
        _, state = checkpoint
        recorded = state.get("data_fingerprint")
        on_first(lambda: check_same_data(parts.spec, directory.path, recorded, parts.data_fingerprint))
        backend = state.get("backend")
        on_first(lambda: check_same_backend(backend, parts, directory.path))
        with refuse_other_shapes(directory.path):
            loop.restore(state)
        state.clear()  # else it would keep a second copy of weights and moments for the whole training
    else:
        trackers.rewind(0)  # drop the rows of an earlier start that had no checkpoint yet
    on_first(lambda: _keep_facts(parts, directory, origin))
    on_first(checkpoints.tidy)
    try:
        return loop.run()
    finally:
        if parts.processes.first:  # the last step, also after an error
            directory.write_status("running", **position(loop.progress))


@contextlib.contextmanager
def _status(directory: RunDirectory) -> Iterator[None]:
    """A context that writes the outcome of its run to status.json."""
    directory.write_status("running")
    try:
        yield
    except BaseException as error:
        kind, stopped = type(error), (Interrupted, KeyboardInterrupt, SystemExit)
        state = "diverged" if kind is Diverged else "interrupted" if isinstance(error, stopped) else "failed"
        message = str(error) if isinstance(error, UserError | Interrupted) else f"{kind.__name__}: {error}"
        directory.write_status(state, error=message, traceback="".join(traceback.format_exception(error)))
        raise
    directory.write_status("completed")

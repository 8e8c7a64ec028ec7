"""One run, from a composed config to summary.json. The same command finds its run directory again and goes on there."""

import signal
import sys
import traceback
import uuid
from dataclasses import dataclass
from functools import partial

from omegaconf import DictConfig

from fourierformer import config as configs
from fourierformer.build import Parts, build, check_device, checked_values
from fourierformer.data.text import TextData, check_available
from fourierformer.errors import Diverged, Interrupted, SetupError, UserError
from fourierformer.launch import complain
from fourierformer.measure import Measurements, for_watchers, identity, measure_all, read_or_none, run_summary
from fourierformer.plan import print_plan
from fourierformer.rundir import RunDirectory, atomic_write_text
from fourierformer.sweep import Job, SweepRecord, in_sweep, show
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
    """The job Hydra calls. One run ends the process when it does not end well; in a sweep, the record keeps how each
    job ended, and the next one begins."""
    job = Job() if in_sweep() else None
    code, error = _outcome(config, job)
    if job:
        job.write(exit_code=code, error=error)
    elif code:
        sys.exit(code)


def _outcome(config: DictConfig, job: Job | None) -> tuple[int, str | None]:
    """Exit code and error of a job, said on stderr."""
    try:
        if job and job.stop_asked():
            return 143, "not begun: the sweep was stopped"
        values = checked_values(config)
        if values["dry_run"]:
            print_plan(values)
        else:
            _run(values, job)
        return 0, None
    except UserError as error:
        return complain(f"{job.label}: {error}" if job else error, error.exit_code), str(error)
    except Interrupted as stop:
        code = exit_code(stop.signal_number)
        if job:
            job.write(exit_code=code, error=str(stop))
        if job is None or SweepRecord.current:  # the sweep runs in this process too: it ends here
            raise
        return code, str(stop)
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        return 1, f"{type(error).__name__}: {error}"


def _run(values: dict, job: Job | None) -> None:
    directory = RunDirectory(configs.run_directory(values))
    if job:
        job.write(run=str(directory.path.resolve()))
    check_device(values)
    check_available(TextData(**values["data"]))
    if values["fresh"] and (aside := directory.set_aside()):
        print(f"fresh=true: the earlier run is now {aside}")
    with directory.lock():
        if _already_done(directory, values):
            print(f"already done: {directory.path} (fresh=true runs it again)")
        else:
            with StopSignal() as stop, _status(directory):
                if job and job.stop_asked():  # the signal itself came before this process listened
                    raise Interrupted(signal.SIGTERM)
                _train_and_measure(values, directory, stop)
    if job is None:
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
    status, summary = read_or_none(directory.status), read_or_none(directory.summary)
    if status is None or summary is None or status.get("state") != "completed":
        return False
    wanted, measured = values["evaluation"], summary.get("results", {})
    return all(protocol in measured.get(split, {}) for split in wanted["splits"] for protocol in wanted["protocols"])


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
        stopped = (Interrupted, KeyboardInterrupt, SystemExit)
        state = "diverged" if kind is Diverged else "interrupted" if issubclass(kind, stopped) else "failed"
        text = "".join(traceback.format_exception(kind, error, trace))
        said = isinstance(error, UserError | Interrupted)  # a sentence already
        message = str(error) if said else f"{kind.__name__}: {error}"
        self.directory.write_status(state, error=message, traceback=text)


@dataclass
class _Watchers:
    trackers: Trackers
    console: ConsoleTracker


def _train_and_measure(values: dict, directory: RunDirectory, stop: StopSignal) -> None:
    seed_everything(values["seed"])
    atomic_write_text(directory.config, configs.to_yaml(values))
    # the summary's keys already now: a run that fails must be found in the right row of a table
    meta = directory.write_meta(**identity(values))
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
        summary = run_summary(directory, parts, progress, measurements, meta)
        directory.write_summary(summary)
        watchers.trackers.summary(for_watchers(summary, parts.task.metric))
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
    try:
        return fit.run()
    finally:
        heartbeat(fit.progress)  # status.json has the last step, however this ended


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

"""The first second of a job: what can be decided without torch, which takes seconds to load, is decided here."""

import re
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fourierformer.checking import plain_values
from fourierformer.config import from_yaml, make_spec, run_directory, with_experiment_of_data
from fourierformer.errors import SetupError, UserError
from fourierformer.processes import find_processes
from fourierformer.provenance import code_since, command_of
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.same_data import check_before_loading
from fourierformer.runs.sweep import Job, in_sweep, show
from fourierformer.tasks import task_named

IGNORED = ("runs_root", "run_dir", "fresh")  # a run that was moved, or made anew, is still the same

VISION_DEBUG = "smoke_vit"


def run_job(config: DictConfig) -> None:
    """Runs one job, called by Hydra; where its run is complete, only says so and shows its table."""
    directory = _complete(config)
    if directory is None:
        from fourierformer.runs.run import main

        main(config)
        return
    directory.remove_litter()  # of a process that was killed after its last result
    job = Job() if in_sweep() else None
    (job.name.say if job else print)(done_message(directory, config.tracker.name))
    if job:
        job.write(run=str(directory.path.resolve()), exit_code=0)
    else:
        show([directory.path], report=directory.path / "report.html")


def check_debug(config: DictConfig) -> None:
    """SetupError for a debug option of the other script, which would fail at a key that only that one has."""
    if not HydraConfig.initialized():
        return
    chosen = HydraConfig.get().runtime.choices.get("debug") or ""
    is_vision = config.get("task") == "vision"
    if chosen.startswith("smoke") and (chosen == VISION_DEBUG) != is_vision:
        kind, right = ("language models", VISION_DEBUG) if is_vision else ("images", "smoke")
        script = re.sub("lm|vit", "vit" if is_vision else "lm", Path(sys.argv[0]).name)
        raise SetupError(f"debug={chosen} is for {kind}: {command_of(script)} debug={right}")


def done_message(directory: RunDirectory, tracker: str) -> str:
    """Says that a run is done, and what may be another now than when it ran."""
    remarks = [code_since(directory.read_meta() or {})]
    if tracker == "wandb" and not directory.wandb_id.is_file():
        remarks.append("wandb does not have it")
    said = "".join(f"; {remark}" for remark in remarks if remark)
    return f"already done: {directory.path}{said} (fresh=true runs it again)"


def _complete(config: DictConfig) -> RunDirectory | None:
    """The directory of a completed run of exactly this config, which was checked when it ran; None in all other
    cases, and where there is any doubt."""
    try:
        values = with_experiment_of_data(plain_values(config))
        if values.get("fresh") or values.get("dry_run") or find_processes()[0].world > 1:
            return None
        directory = RunDirectory(run_directory(values))
        if not directory.config.is_file() or _asked_to_stop():
            return None
        stored, status = from_yaml(directory.config), directory.read_status() or {}
        if _comparable(stored) != _comparable(values) or status.get("state") != "completed":
            return None
        spec = make_spec(task_named(values["task"]).spec, values)
        check_before_loading(spec, directory, directory.read_meta() or {})
        return directory if directory.read_summary() else None
    except (UserError, KeyError, TypeError):  # a mistake in the config, or a damaged file: run.py has the message
        return None


def _comparable(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in IGNORED}


def _asked_to_stop() -> bool:
    return in_sweep() and Job().stop_asked()

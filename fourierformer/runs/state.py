"""Decide the state of a run directory for a config: new, an unfinished run, a finished one, or another run.

Completeness of a run is decided here alone, without torch for a finished run. A run keeps a fingerprint of the content
of its data, in meta.json and in every checkpoint. The folder may move, its content may not change: weights trained on
one text are meaningless on another.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from fourierformer.config import RunSpec, differences, from_yaml
from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.processes import started_again
from fourierformer.provenance import code_since, packages_since
from fourierformer.runs.directory import RunDirectory, readable
from fourierformer.runs.spec import task_of


@dataclass(frozen=True)
class State:
    """State of a run directory for a config, and a sentence for the console that gives the reason."""

    word: Literal["new", "resumes", "done", "another run"]
    sentence: str


def state_of(directory: RunDirectory, spec: RunSpec) -> State:
    """The state of this directory for this config. SetupError where its run was trained on other data."""
    path, same = directory.path, f"same config {spec.hash}"
    if not directory.config.exists():
        return State("new", f"begins {path}: config {spec.hash}")
    changed = differences(from_yaml(directory.config), spec.values)
    if changed:
        way_out = "Choose another run_dir="
        if not spec.run_dir:
            way_out = "Its name is the hash of this one, so its config.yaml was changed: restore that"
        text = f"{path} holds a run of another config: {'; '.join(changed)}. "
        return State("another run", f"{text}{way_out}, or fresh=true to move that run aside.")
    damaged: list[str] = []
    files = directory.meta, directory.status, directory.summary
    meta, status, summary = (readable(file, damaged.append) for file in files)
    _check_data(spec, directory, meta)
    ended = status.get("state") == "completed" and bool(summary)
    measured, wanted = measured_in(summary), task_of(spec).measured_at_end(spec)
    missing = [f"{split}/{protocol}" for split, protocol in wanted if protocol not in measured.get(split, {})]
    if ended and not missing:
        remarks = [code_since(meta), packages_since(meta)]
        if spec.tracker.name == "wandb" and not directory.wandb_id.is_file():
            remarks.append("wandb does not have it")
        since = "".join(f"; {remark}" for remark in remarks if remark)
        return State("done", f"already done: {path}: {same}{since} (fresh=true runs it again)")
    from fourierformer.training.checkpoint import Checkpoints

    step, steps = Checkpoints(directory.checkpoints).newest_step(), status.get("steps") or spec.trainer.steps
    at = f" at step {step:,}" + (f" of {steps:,}" if isinstance(steps, int) else "") if step else " from the beginning"
    why = f" to measure {', '.join(missing)}" if ended else "" if step else ", it has no checkpoint yet"
    return State("resumes", "\n".join([*damaged, f"resumes {path}{at}{why}: {same} (fresh=true starts over)"]))


def begins_anew(spec: RunSpec, directory: RunDirectory) -> bool:
    """Whether fresh=true moves aside what is there: not where Slurm or torchrun has started again what began it."""
    return spec.fresh and not started_again(readable(directory.meta).get("slurm_job"))


def measured_in(stored: dict) -> dict[str, dict[str, dict]]:
    """Results in a summary or in evaluation.json, {split: {protocol: numbers}}, without entries of another form."""
    results = stored.get("results")
    splits = results.items() if isinstance(results, dict) else ()
    return {
        split: {protocol: numbers for protocol, numbers in protocols.items() if isinstance(numbers, dict)}
        for split, protocols in splits
        if isinstance(protocols, dict)
    }


def _check_data(spec: RunSpec, directory: RunDirectory, meta: dict) -> None:
    """SetupError for other data, if that is quick to decide; a resumed run is compared again with its data loaded."""
    recorded = meta.get("data_fingerprint")
    if recorded is None and not directory.checkpoints.exists():
        return  # the run ended before it had read any data
    task = task_of(spec)
    now = task.fingerprint(spec, None)
    if now is None and from_yaml(directory.config)["data"].get("root") != getattr(spec.data, "root", None):
        now = task.fingerprint(spec, task.load_data(spec, echo))  # another folder: only loading it decides
    check_same_data(spec, directory.path, recorded, now)


def check_same_data(spec: RunSpec, run: Path, recorded: str | None, now: str | None) -> None:
    """SetupError if the recorded fingerprint and the fingerprint of the present data are known and differ."""
    if now is None:
        return
    if recorded is None:
        _warn_unknown(run)
    elif recorded != now:
        root = getattr(spec.data, "root", None)
        raise SetupError(
            f"{run} was trained on other data: its fingerprint is {recorded}, the fingerprint of '{spec.data.name}'"
            f"{f' in {root}' if root else ''} is {now}. Give the folder with the data that it was trained on "
            "(data.root= or --data-root), or begin another run: experiment_name=NAME, or fresh=true to move this one "
            "aside."
        )


@cache
def _warn_unknown(run: Path) -> None:
    """Print the note once, although a resumed run is compared before and after its data is loaded."""
    echo(f"note: {run} has no fingerprint of its data, as it was begun by an earlier version: it is not compared")

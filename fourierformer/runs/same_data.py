"""Whether a run goes on with the data that it began with.

A run keeps a fingerprint of the content of its data, in meta.json and in every checkpoint. The folder may move, its
content may not change: weights of one text mean nothing on another, and no number would be what its label says.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fourierformer.config import RunSpec, from_yaml
from fourierformer.errors import SetupError
from fourierformer.runs.directory import RunDirectory
from fourierformer.tasks import task_named


def check_before_loading(spec: RunSpec, directory: RunDirectory, meta: dict) -> None:
    """SetupError if the data of the spec is not that of the run in this directory, as far as that can be told soon: a
    finished run answers at once. A resumed one is compared again when its data is loaded. `meta`: of the run."""
    recorded = meta.get("data_fingerprint")
    if recorded is None and not directory.checkpoints.exists():
        return  # it ended before it had read any data
    check_same_data(spec, directory.path, recorded, _quick_fingerprint(spec, directory))


def _quick_fingerprint(spec: RunSpec, directory: RunDirectory) -> str | None:
    """That of the data as it is now. None where only loading it would tell, and it is in the folder that it was in."""
    task = task_named(spec.task)
    fingerprint = task.fingerprint(spec, None)
    root_before = from_yaml(directory.config)["data"].get("root")
    if fingerprint is None and root_before != getattr(spec.data, "root", None):
        fingerprint = task.fingerprint(spec, task.load_data(spec, print))
    return fingerprint


def check_same_data(spec: RunSpec, run: Path, recorded: str | None, now: str | None) -> None:
    """SetupError if the fingerprint of the run differs from that of the data as it is now, where both are known."""
    if now is None:
        return
    if recorded is None:
        _say_unknown(run)
    elif recorded != now:
        root = getattr(spec.data, "root", None)
        raise SetupError(
            f"{run} was trained on other data: its fingerprint is {recorded}, that of '{spec.data.name}'"
            f"{f' in {root}' if root else ''} is {now}. Give the folder with the data that it was trained on "
            "(data.root= or --data-root), or begin another run: experiment_name=NAME, or fresh=true to move this one "
            "aside."
        )


@contextlib.contextmanager
def refuse_other_shapes(run: Path) -> Iterator[None]:
    """A context for loading a checkpoint: a SetupError where it does not fit the model. A run without a fingerprint may
    have been trained on a text with another vocabulary; or somebody has put another checkpoint there."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {misfit(error)[:200]}"
        raise SetupError(
            f"{run}: the weights of its checkpoint do not fit the model ({reason}). Is data.root= (--data-root) the "
            "data that it was trained on? If so, restore the checkpoint from a copy, or start again with fresh=true."
        ) from None


def misfit(error: Exception) -> str:
    """Why weights do not fit: load_state_dict names the model's class in its first line, each weight in the others."""
    return " ".join(str(error).split("\n")[-1].split())


@cache
def _say_unknown(run: Path) -> None:
    """Once, although a resumed run is compared before and after its data is loaded."""
    print(f"note: {run} has no fingerprint of its data, as it was begun by an earlier version: it is not compared")

"""A composed or stored config -> the RunSpec of its task: read once, at the door, and refused there."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from fourierformer.attention import Attention, Geometry, available, build, knobs
from fourierformer.config import RunSpec, checked, completed, from_yaml, schema, specified
from fourierformer.errors import SetupError
from fourierformer.tasks import Task, task_named
from fourierformer.training.processes import find_processes


def read_spec(config: DictConfig | dict) -> RunSpec:
    """Everything that can be refused without data and without a model is refused here, in one sentence."""
    name = (config.get("attention") or {}).get("name")
    if name is None:
        raise SetupError("no attention chosen: attention=fourier, or another of " + ", ".join(available()))
    task = task_named(config.get("task"))
    _check_groups(task, config)
    spec = specified(task.spec, checked(config, schema(task.spec, knobs(name))))
    world = find_processes()[0].world
    if spec.global_batch_size % world:
        raise SetupError(
            f"global_batch_size={spec.global_batch_size} cannot be shared equally by {world} processes: choose a "
            f"multiple of {world}"
        )
    one_layer(spec)
    return spec


def stored_spec(run: Path) -> RunSpec:
    """Of a run directory."""
    values = from_yaml(run / "config.yaml")
    return read_spec(completed(task_named(values.get("task")).spec, values))


def task_of(spec: RunSpec) -> Task:
    return task_named(spec.task)


def attention_of(spec: RunSpec) -> Callable[[Geometry], Attention]:
    """Geometry -> the chosen mechanism with its knobs."""
    return partial(build, spec.attention.name, **spec.attention.knobs)


def one_layer(spec: RunSpec) -> Attention:
    """A layer without memory, to ask what it refuses."""
    import torch

    with torch.device("meta"):
        return attention_of(spec)(task_of(spec).geometry(spec))


def changed(spec: RunSpec, **sections: dict) -> RunSpec:
    """The same run with some values of some sections exchanged: changed(spec, trainer={"device": "cpu"})."""
    return replace(spec, **{name: replace(getattr(spec, name), **values) for name, values in sections.items()})


def _check_groups(task: Task, config: DictConfig | dict) -> None:
    """A group made for another script would only fail at one of its keys, with a misleading message."""
    for section in ("model", "data"):
        chosen = config.get(section) or {}
        if reason := task.wrong_group(section, chosen):
            origin = f"{section}={chosen.get('name')}"
            raise SetupError(f"{origin} (of {config.get('experiment_name')}) is not for {task.script}: {reason}")

"""Read a composed or stored config as the RunSpec of its task: resolved once, checked once.

`read_command` needs no torch, so that a finished run is shown at once. `check_mechanism` checks the attention and its
knobs, with torch. `read_spec` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from fourierformer.checking import check_config, check_section, plain_values
from fourierformer.config import (
    RunSpec,
    config_hash,
    from_yaml,
    make_spec,
    schema,
    types_of,
    with_experiment_of_data,
    with_missing_keys,
)
from fourierformer.errors import SetupError
from fourierformer.files import read_json
from fourierformer.models.config import attention_layers
from fourierformer.processes import find_processes, own_share
from fourierformer.tasks import Task, task_named, tasks

if TYPE_CHECKING:
    from fourierformer.attention import Attention, Geometry


def read_spec(config: DictConfig | dict) -> RunSpec:
    """The spec of a command's config, or of the plain values of a stored one, in which ${...} is text and is not
    resolved. SetupError for every mistake that can be recognised without data and without a model."""
    spec = _of_values(config if isinstance(config, dict) else plain_values(config))
    check_mechanism(spec)
    return spec


def read_command(config: DictConfig) -> RunSpec:
    """The spec of a command's config, all but its mechanism checked. SetupError also for values without effect."""
    spec = _of_values(with_experiment_of_data(plain_values(config)))
    for section in vars(spec).values():  # a stored run may have such values, and is still read
        if reason := getattr(section, "without_effect", None):
            raise SetupError(reason)
    _check_pattern(spec)
    return spec


def check_mechanism(spec: RunSpec) -> None:
    """SetupError for an unknown attention or knob, and for a mechanism that does not support its place in the model."""
    from fourierformer.attention import knobs

    name = spec.attention.name
    check_section("attention.", spec.values["attention"], {"name": str, **types_of(knobs(name))})
    task_of(spec).check_attention(spec)
    meta_layers(spec)


def _check_pattern(spec: RunSpec) -> None:
    """SetupError if `hybrid` names more mechanisms than the model has layers: no layer would have the last ones."""
    pattern = spec.attention.knobs.get("pattern")
    if spec.attention.name != "hybrid" or not isinstance(pattern, list):  # checked later, with torch
        return
    if len(pattern) > (layers := attention_layers(spec.model)):
        count, unused = f"{layers} layer{'s' * (layers > 1)}", ", ".join(map(str, pattern[layers:]))
        raise SetupError(
            f"attention.pattern names {len(pattern)} mechanisms for {count}: there would be no {unused}. Shorten it, "
            "or choose a model with more layers"
        )


def stored_spec(run: Path) -> RunSpec:
    """The spec of a run directory."""
    values = from_yaml(run / "config.yaml")
    known = (read_json(run / "meta.json") or {}).get("config_hash")
    if known and config_hash(values) != known:
        damage = "it does not match the hash of the run in meta.json. Restore it from a copy."
        raise SetupError(f"{run / 'config.yaml'} is damaged: {damage}")
    return spec_of_values(values)


def stored_hash(run: Path) -> str:
    """The hash in a run's checkpoints. That of `stored_spec` differs where the mechanism has more knobs by now."""
    return config_hash(from_yaml(run / "config.yaml"))


def spec_of_values(values: dict) -> RunSpec:
    """The spec of a stored config, of this version or of an earlier one."""
    from fourierformer.attention import knobs

    chosen = values.get("attention")
    if isinstance(chosen, dict) and isinstance(chosen.get("name"), str):  # add the knobs of later versions
        defaults = {knob: parameter.default for knob, parameter in knobs(chosen["name"]).items()}
        values = values | {"attention": defaults | chosen}
    return read_spec(with_missing_keys(task_named(values.get("task")).spec, values))


def with_changes(spec: RunSpec, **sections: dict) -> RunSpec:
    """The spec, and with it its hash, with some values replaced: with_changes(spec, optim={"lr": 0.1})."""
    changed = {name: spec.values[name] | values for name, values in sections.items()}
    return make_spec(type(spec), spec.values | changed)


def task_of(spec: RunSpec) -> Task:
    return task_named(spec.task)


def attention_of(spec: RunSpec) -> Callable[[Geometry], Attention]:
    """A function that builds the chosen mechanism, with its knobs, for a geometry."""
    from fourierformer.attention import build

    return partial(build, spec.attention.name, **spec.attention.knobs)


def meta_layers(spec: RunSpec) -> list[Attention]:
    """An attention layer of each mechanism of the model, on the meta device, which takes no memory. SetupError for a
    config that one of them does not support."""
    import torch

    first, mechanisms = task_of(spec).geometry(spec), len(spec.attention.knobs.get("pattern") or "-")  # of `hybrid`
    with torch.device("meta"):
        return [attention_of(spec)(replace(first, layer=first.layer + i)) for i in range(mechanisms)]


def _of_values(values: dict) -> RunSpec:
    """Plain values as a spec, checked without torch."""
    chosen = values.get("attention")
    if not isinstance(chosen, dict | None):
        raise SetupError(f"'attention' must be a config group, got {chosen!r}")
    name = (chosen or {}).get("name")
    if name is None and chosen is not None:
        raise SetupError("the yaml of the chosen attention lacks its name: write `name: ...` as its class registers it")
    if name is None:
        from fourierformer.attention import available

        raise SetupError("no attention chosen: attention=fourier, or another of " + ", ".join(available()))
    if not isinstance(name, str):
        raise SetupError(f"attention.name={name!r}: expected text")
    task = task_named(values.get("task"))
    _check_groups(task, values)
    check_config(values, schema(task.spec))
    spec = make_spec(task.spec, values)
    own_share(f"global_batch_size={spec.global_batch_size}", spec.global_batch_size, 0, find_processes()[0].world)
    return spec


def _check_groups(task: Task, values: dict) -> None:
    """SetupError for a group or an experiment of another task, before one of its keys fails as unknown."""
    for section in ("model", "data"):
        chosen = values.get(section)
        if not isinstance(chosen, dict):
            continue  # check_config refuses it
        known = {other: set(schema(other.spec)[section]) for other in tasks()}
        owners = [other for other, keys in known.items() if keys == set(chosen)]
        owners = owners or [other for other, keys in known.items() if keys < set(chosen)]  # an experiment adds its own
        if owners and task not in owners:
            owner = max(owners, key=lambda other: len(known[other]))
            raise _of_another_task(f"{section}={chosen.get('name')} (of {values.get('experiment_name')})", owner, task)
    experiment, own = values.get("experiment_name"), _keys(schema(task.spec))
    for key in [key for key in _keys(values) if key not in own]:
        for owner in tasks():
            if key in schema(owner.spec):  # a group, which the script of `owner` adds
                raise SetupError(f"{experiment} is for task={task.name}: {task.command} trains its models")
            if key in _keys(schema(owner.spec)):
                raise _of_another_task(f"{key} (of {experiment})", owner, task)


def _keys(sections: Mapping) -> list[str]:
    """The names of sections and of their keys; all but those of the attention, which are checked with torch."""
    found = [name for name in sections if name]
    for name in found[:]:
        if name != "attention" and isinstance(sections[name], Mapping):
            found += [f"{name}.{key}" for key in sections[name]]
    return found


def _of_another_task(origin: str, owner: Task, task: Task) -> SetupError:
    command = f"experiment={owner.experiment}" if owner.script == task.script else f"python {owner.script}"
    error = SetupError(f"{origin} is not for task={task.name}: {command} trains {owner.name} models")
    error.ends_sweep = owner.script != task.script
    return error

"""From a composed Hydra config to one frozen, typed RunSpec, a hash, and a run directory.

Hydra accepts `+typo=1` and wrong types silently; here every key is held against the signature of what it configures.
OmegaConf is imported where files or composed configs are read: models and the training loop do without it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from yaml import YAMLError

from fourierformer.errors import SetupError, check_range, did_you_mean
from fourierformer.training.config import OptimConfig, ScheduleConfig, TrainerConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Keys that say where, how visibly or how conveniently a run happens, but not what it computes: not part of the hash, so
# changing them resumes the same run.
NOT_HASHED = {
    *("runs_root", "run_dir", "fresh", "dry_run", "tracker"),
    *("evaluation.splits", "evaluation.protocols", "evaluation.tokens_per_forward", "evaluation.images_per_forward"),
    *("data.root", "data.cache", "data.workers", "data.in_memory", "trainer.device", "trainer.compile"),
    *("trainer.save_every", "trainer.log_every", "trainer.keep_checkpoints"),
}


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """The keys of configs/tracker/*.yaml."""

    name: typing.Literal["none", "wandb"]
    project: str
    entity: str | None
    mode: typing.Literal["auto", "online", "offline", "disabled"]


@dataclass(frozen=True)
class AttentionConfig:
    """The keys of configs/attention/*.yaml: a mechanism and its knobs, which only the mechanism knows."""

    name: str
    knobs: dict[str, typing.Any]


class Named(typing.Protocol):
    """What every task's `model` and `data` say about themselves."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run as its config describes it, checked. A task adds what it is made of: model, data, evaluation."""

    task: str
    seed: int
    global_batch_size: int
    experiment_name: str
    runs_root: str
    run_dir: str | None
    fresh: bool
    dry_run: bool
    is_debug: bool
    attention: AttentionConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    tracker: TrackerConfig
    trainer: TrainerConfig
    values: dict = field(repr=False, compare=False)  # the plain values, as they are hashed and written to config.yaml

    if TYPE_CHECKING:  # the fields that a task's spec adds, as far as all tasks agree on them; none of them here

        @property
        def model(self) -> Named: ...

        @property
        def data(self) -> Named: ...

        @property
        def evaluation(self) -> object: ...

    def __post_init__(self):
        check_range("seed", self.seed, 0, 2**63)
        check_range("global_batch_size", self.global_batch_size, 1)
        if not self.experiment_name or "/" in self.experiment_name or self.experiment_name.startswith("."):
            raise SetupError(f"experiment_name='{self.experiment_name}' becomes a folder: no '/', no leading dot")
        micro, batch = self.trainer.micro_batch_size, self.global_batch_size
        if micro is not None and micro > batch:
            raise SetupError(
                f"trainer.micro_batch_size={micro} is a part of global_batch_size={batch}: at most {batch}"
            )

    @property
    def hash(self) -> str:
        """Eight hex digits naming what is computed."""
        return config_hash(self.values)

    @property
    def group(self) -> str:
        """The same for all runs that differ only in their seed."""
        return config_hash(self.values, seed=False)

    @property
    def directory(self) -> Path:
        return run_directory(self.values)


Schema = dict[str, dict[str, object]]  # section -> key -> type annotation; section "" is the top level


def sections(spec: type[RunSpec]) -> dict[str, type]:
    """The sections of a config whose keys are fixed, each with the dataclass that holds it."""
    hints = typing.get_type_hints(spec)
    owners = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    return {name: owner for name, owner in owners.items() if owner is not AttentionConfig}


def schema(spec: type[RunSpec], knobs: typing.Mapping[str, inspect.Parameter]) -> Schema:
    """Which keys a config may have: the fields of `spec` and of its sections, and the attention's knobs."""
    fixed = sections(spec)
    top = {name: hint for name, hint in hints_of(spec).items() if name not in (*fixed, "attention", "values")}
    return {"": top, "attention": {"name": str, **hints_of(knobs)}} | {
        section: hints_of(owner) for section, owner in fixed.items()
    }


def specified(spec: type[RunSpec], values: dict) -> RunSpec:
    """Plain checked values as a `spec`; what any part of it refuses, it refuses here."""
    parts = {name: owner(**values[name]) for name, owner in sections(spec).items()}
    knobs = {key: value for key, value in values["attention"].items() if key != "name"}
    top = {key: value for key, value in values.items() if key not in parts and key != "attention"}
    return spec(**top, **parts, attention=AttentionConfig(values["attention"]["name"], knobs), values=values)


def hints_of(owner) -> dict[str, object]:
    """Key -> type of a dataclass, or of a {name: inspect.Parameter} mapping."""
    if is_dataclass(owner):
        hints = typing.get_type_hints(owner)
        return {f.name: hints[f.name] for f in fields(owner)}
    return {name: parameter.annotation for name, parameter in owner.items()}


def completed(spec: type[RunSpec], values: dict) -> dict:
    """A stored config with the keys that its version did not have yet, at what it did without them."""
    found = dict(values)
    for name, owner in sections(spec).items():
        if isinstance(values.get(name), dict):
            defaults = {f.name: f.default for f in fields(owner) if f.default is not MISSING}
            found[name] = defaults | values[name]
    return found


def checked(config: DictConfig | dict, schema: Schema) -> dict:
    """The config as plain resolved values, or a SetupError naming the first thing that is wrong."""
    values = _resolved(config)
    values.pop("scale", None)  # it told a sweep its experiments (configs/scale) and has no part in a run
    sections = {name for name in schema if name}
    for key in values:
        if key not in sections and key not in schema[""]:
            raise SetupError(f"unknown key '{key}'{did_you_mean(key, sections | set(schema['']))}")
    _check_section("", {k: v for k, v in values.items() if k not in sections}, schema[""])
    for section in sorted(sections):
        if not isinstance(values.get(section), dict):
            raise SetupError(f"'{section}' must be a config group, got {values.get(section)!r}")
        _check_section(f"{section}.", values[section], schema[section])
    return values


def _resolved(config: DictConfig | dict) -> dict:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = config if OmegaConf.is_config(config) else OmegaConf.create(config)
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise SetupError(f"no value for {', '.join(missing)}: give one, e.g. {missing[0]}=1, or choose experiment=")
        values = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
        assert isinstance(values, dict)  # of a DictConfig
    except OmegaConfBaseException as error:
        raise SetupError(f"cannot resolve '{error.full_key}': {str(error).splitlines()[0]}") from None
    return {str(k): v for k, v in values.items()}


def _check_section(prefix: str, values: dict, expected: dict[str, object]) -> None:
    for key, value in values.items():
        if key not in expected:
            raise SetupError(f"unknown key '{prefix}{key}'{did_you_mean(str(key), expected, prefix)}")
        if not _fits(value, expected[key]):
            raise SetupError(f"{prefix}{key}={value!r}: expected {_describe(expected[key])}")
    absent = sorted(set(expected) - set(values))
    if absent:
        raise SetupError(f"no value for {prefix}{absent[0]}: give one on the command line")


def _fits(value: object, hint: typing.Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(v, arguments[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, arguments[1]) for v in value.values())
    if hint in (None, type(None)):
        return value is None
    if hint is inspect.Parameter.empty:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: typing.Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"'{a}'" for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    if origin is list:
        return f"a list of {_describe(arguments[0])}, e.g. [a,b]"
    if origin is dict:
        return "a mapping"
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return plain.get(hint, str(hint))


# -- identity of a run ----------------------------------------------------------------------------------------------


def hashed_part(values: dict) -> dict:
    """The part of a config that decides what is computed, as {"section.key": value}."""
    flat = dict(flatten(values))
    return {k: v for k, v in flat.items() if k not in NOT_HASHED and k.split(".")[0] not in NOT_HASHED}


def flatten(values: dict, prefix: str = "") -> Iterator[tuple[str, typing.Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def config_hash(values: dict, *, seed: bool = True) -> str:
    """Eight hex digits naming what is computed; seed=False names the group of runs that differ only in their seed."""
    part = hashed_part(values)
    if not seed:
        part.pop("seed")
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:8]


def run_directory(values: dict) -> Path:
    """runs/<experiment>/<model>-<attention>-s<seed>-<hash>: the same command finds its run again."""
    if values["run_dir"]:
        return Path(values["run_dir"])
    name = f"{values['model']['name']}-{values['attention']['name']}-s{values['seed']}-{config_hash(values)}"
    return Path(values["runs_root"]) / values["experiment_name"] / name


def differences(old: dict, new: dict) -> list[str]:
    """'trainer.steps: 600 -> 700' for every difference that changes what is computed."""
    old, new = hashed_part(old), hashed_part(new)
    keys = sorted(set(old) | set(new))
    return [f"{k}: {old.get(k, '-')} -> {new.get(k, '-')}" for k in keys if old.get(k, "-") != new.get(k, "-")]


def to_yaml(values: dict) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(values))


def from_yaml(path: Path) -> dict:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        raise SetupError(f"{path.parent} is not a run directory: it has no {path.name}") from None
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise SetupError(
            f"{path} cannot be read ({' '.join(str(error).split())}). Restore it from a copy, or move the run aside "
            "with fresh=true."
        ) from None
    if not isinstance(values, dict) or "attention" not in values:
        raise SetupError(f"{path} is damaged: it holds no config. Restore it, or move the run aside with fresh=true.")
    return values

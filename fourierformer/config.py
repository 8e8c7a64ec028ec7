"""One run as a frozen, typed RunSpec, made from a checked config; its hash and its run directory.

checking.py compares a composed config with the keys and types stated here. OmegaConf is imported only to read files:
models and the training loop do not need it.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from yaml import AliasEvent, YAMLError, parse

from fourierformer.checking import Schema
from fourierformer.errors import LARGEST_COUNT, SetupError, check_name, check_path, check_range, one_line
from fourierformer.files import checksum, require_small
from fourierformer.training.config import OptimConfig, ScheduleConfig, TrainerConfig

type_hints: Callable[[object], dict[str, typing.Any]] = cache(typing.get_type_hints)  # compiles every annotation

# Keys of paths, output and convenience, which do not change what a run computes. They are not part of the hash: a
# command that differs only in them resumes the same run.
NOT_HASHED = {
    *("runs_root", "run_dir", "fresh", "dry_run", "tracker"),
    *("evaluation.splits", "evaluation.protocols", "evaluation.tokens_per_forward", "evaluation.images_per_forward"),
    *("data.root", "data.cache", "data.workers", "data.in_memory", "trainer.device", "trainer.compile"),
    *("trainer.save_every", "trainer.log_every", "trainer.keep_checkpoints"),
}

# Keys added later, each with the value that reproduces earlier runs. At that value they are not part of the hash, so
# that earlier runs keep theirs.
ADDED_LATER = {
    **{"attention.allow_negative": False, "attention.factorized": True, "attention.gate": "sigmoid"},
    **{"model.norm": "post", "model.qk_norm": "none", "model.gate": "none", "model.value_residual": 0.0},
    **{"model.position": "sinusoid", "model.rotary_base": 10000.0},
    **{"model.norm_kind": "layer", "model.feed_forward": "relu", "model.dropout_mask": "torch"},
    **{"evaluation.word_swap": 0.0, "init_from": None, "trainer.patience": None},
}


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """The keys of configs/tracker/*.yaml."""

    name: typing.Literal["none", "wandb", "trackio"]
    project: str
    entity: str | None
    mode: typing.Literal["auto", "online", "offline", "disabled"]
    tags: list[str] | None = None  # besides the names of experiment, data and attention
    artifact: bool = False  # upload the best checkpoint


@dataclass(frozen=True)
class AttentionConfig:
    """The keys of configs/attention/*.yaml: a mechanism and its own knobs."""

    name: str
    knobs: dict[str, typing.Any]

    def __post_init__(self):
        for knob, value in flatten(self.knobs):
            if isinstance(value, int):
                check_range(f"attention.{knob}", value, -LARGEST_COUNT, LARGEST_COUNT + 1)


class Named(typing.Protocol):
    """The common part of every task's `model` and `data`."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run as its config describes it, checked. A task adds its sections: model, data, evaluation.

    Examples:
        >>> from pathlib import Path
        >>> from fourierformer.runs.spec import stored_spec
        >>> spec = stored_spec(Path("runs/my_run"))
        >>> spec.attention.name, spec.seed
        ('softmax', 1)
    """

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
    init_from: str | None = None  # the run whose best weights it starts from
    values: dict = field(repr=False, compare=False)  # the plain values, as they are hashed and written to config.yaml

    if TYPE_CHECKING:  # the common part of the fields that each task's spec adds

        @property
        def model(self) -> Named: ...

        @property
        def data(self) -> Named: ...

        @property
        def evaluation(self) -> object: ...

    def __post_init__(self):
        check_range("seed", self.seed, 0, 2**63)
        check_range("global_batch_size", self.global_batch_size, 1)
        check_name("experiment_name", self.experiment_name)
        check_name("model.name", self.model.name)
        check_path("runs_root", self.runs_root)
        check_path("run_dir", self.run_dir)
        check_path("init_from", self.init_from)
        part, batch = self.trainer.micro_batch_size, self.global_batch_size
        if part is not None and part > batch:
            raise SetupError(f"trainer.micro_batch_size={part} is more than global_batch_size={batch}: at most {batch}")

    @property
    def hash(self) -> str:
        """Eight hex digits, equal for configs that compute the same."""
        return config_hash(self.values)

    @property
    def group(self) -> str:
        """Eight hex digits, equal for all runs that differ only in their seed."""
        return config_hash(self.values, seed=False)

    @property
    def directory(self) -> Path:
        return run_directory(self.values)


def sections(spec: type[RunSpec]) -> dict[str, type]:
    """The sections of a config with fixed keys, each with its dataclass."""
    owners = {name: hint for name, hint in types_of(spec).items() if isinstance(hint, type) and is_dataclass(hint)}
    return {name: owner for name, owner in owners.items() if owner is not AttentionConfig}


def schema(spec: type[RunSpec]) -> Schema:
    """The keys of a config with their types: fields of `spec` and of its sections. runs/spec.py checks the knobs of
    `attention`: reading them imports the mechanism, and torch with it."""
    fixed = sections(spec)
    top = {name: hint for name, hint in types_of(spec).items() if name not in (*fixed, "values")}
    return {"": top | {"attention": dict[str, object]}} | {name: types_of(owner) for name, owner in fixed.items()}


def make_spec(spec: type[RunSpec], values: dict) -> RunSpec:
    """Plain checked values as a `spec`. SetupError for a value out of range."""
    parts = {name: owner(**values[name]) for name, owner in sections(spec).items()}
    knobs = {key: value for key, value in values["attention"].items() if key != "name"}
    top = {key: value for key, value in values.items() if key not in parts and key != "attention"}
    return spec(**top, **parts, attention=AttentionConfig(values["attention"]["name"], knobs), values=values)


def types_of(owner) -> dict[str, object]:
    """Key -> type of a dataclass, or of a {name: inspect.Parameter} mapping."""
    if is_dataclass(owner):
        hints = type_hints(owner)
        return {f.name: hints[f.name] for f in fields(owner)}
    return {name: parameter.annotation for name, parameter in owner.items()}


def with_missing_keys(spec: type[RunSpec], values: dict) -> dict:
    """A stored config with the keys of later versions, at their defaults."""
    complete = {f.name: f.default for f in fields(spec) if f.default is not MISSING} | values
    for name, owner in sections(spec).items():
        if isinstance(values.get(name), dict):
            defaults = {f.name: f.default for f in fields(owner) if f.default is not MISSING}
            complete[name] = defaults | values[name]
    return complete


def hashed_part(values: dict) -> dict:
    """The part of a config that changes what is computed, as {"section.key": value}."""
    flat = {k: v for k, v in flatten(values) if k not in ADDED_LATER or v != ADDED_LATER[k]}
    return {k: v for k, v in flat.items() if k not in NOT_HASHED and k.split(".")[0] not in NOT_HASHED}


def flatten(values: dict, prefix: str = "") -> Iterator[tuple[str, typing.Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def config_hash(values: dict, *, seed: bool = True) -> str:
    """Eight hex digits, equal for configs that compute the same, or with seed=False that differ only in the seed."""
    part = hashed_part(values)
    if not seed:
        part.pop("seed")
    return checksum(part)[:8]


def _path(text: str) -> Path:
    """A path with `~` expanded. An unknown user is no error here, unlike Path.expanduser's: `check_path` refuses it."""
    return Path(os.path.expanduser(text))


def run_directory(values: dict) -> Path:
    """runs/<experiment>/<model>-<attention>-s<seed>-<hash>, or run_dir: the same command has the same directory."""
    if values["run_dir"]:
        return _path(values["run_dir"])
    name = f"{values['model']['name']}-{values['attention']['name']}-s{values['seed']}-{config_hash(values)}"
    return _path(values["runs_root"]) / values["experiment_name"] / name


def with_experiment_of_data(values: dict) -> dict:
    """The values of a command, with the data in place of `builtin` in its experiment's name: `data=wikitext2` alone
    would be filed among the runs of built-in data. builtin_vit becomes cifar10_vit."""
    data, name = values.get("data") or {}, str(values.get("experiment_name"))
    if data.get("source") != "files" or not name.startswith("builtin"):
        return values
    return values | {"experiment_name": name.replace("builtin", str(data.get("name")), 1)}


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

    way_out = "Restore it from a copy, or move the run aside with fresh=true."
    try:
        require_small(path)
        text = path.read_text(encoding="utf-8")
        if "*" in text and any(isinstance(event, AliasEvent) for event in parse(text)):
            raise ValueError("it has YAML aliases, which no run writes and which may expand without end")
        values = OmegaConf.to_container(OmegaConf.load(StringIO(text)))  # not resolved: it may be of somebody else
        checksum(values)  # TypeError for what is no plain value
    except (FileNotFoundError, NotADirectoryError):
        raise SetupError(f"{path.parent} is not a run directory: {_why_no_run(path.parent, path.name)}") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise SetupError(f"{path} cannot be read ({one_line(error)}). {way_out}") from None
    if not isinstance(values, dict) or "attention" not in values:
        raise SetupError(f"{path} is damaged: it holds no config. {way_out}")
    return values


def _why_no_run(folder: Path, config: str) -> str:
    """The message about a folder that is no run, with the nearest run."""
    if folder.is_file():
        return "it is a file"
    if not folder.is_dir():
        near = get_close_matches(folder.name, [path.parent.name for path in folder.parent.glob(f"*/{config}")], n=1)
        return "there is no such directory" + (f" (did you mean {folder.parent / near[0]}?)" if near else "")
    if (folder / "model.safetensors").is_file():
        return "it is an exported model, for fourierformer.from_pretrained and generate.py: name the run behind it"
    runs = sorted(path.parent for path in folder.glob(f"*/{config}"))
    return f"it has no {config}" + (f", but holds runs: name one, as {runs[0]}" if runs else "")

"""The configs of the paper's trainings, composed from their YAML files without Hydra.

A machine for a quick look at a GPU has torch, triton and timm, and often neither Hydra nor OmegaConf; so the files are
composed here. A test holds that Hydra composes the same values.
"""

import re
from dataclasses import dataclass

import yaml

from fourierformer.provenance import CONFIGS


@dataclass(frozen=True)
class Recipe:
    """One of the paper's trainings, as one GPU runs it."""

    script: str  # whose config it is: train_lm or train_vit
    experiment: str
    batch: int  # sequences or images in a step
    whole_steps: int  # steps of this batch that the paper's run amounts to


RECIPES = {
    "lm_small": Recipe("train_lm", "wt103_small", batch=96, whole_steps=500_000),
    "lm_medium": Recipe("train_lm", "wt103_medium", batch=56, whole_steps=400_000),
    # 300 epochs of 1,251 steps of 1,024 images, on four GPUs with 256 images each
    "deit_tiny": Recipe("train_vit", "imagenet_deit_tiny", batch=256, whole_steps=300 * 1251 * 4),
}


class Yaml(yaml.SafeLoader):
    """Reads 1e-6 as a number, as OmegaConf does; YAML 1.1 wants a point in it."""


Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read(name: str) -> dict:
    return yaml.load((CONFIGS / f"{name}.yaml").read_text(), Yaml)


def compose(script: str, experiment: str, **chosen: str) -> dict:
    """{"model": {...}, "global_batch_size": 96, ...} as Hydra composes them for script, experiment=... and `chosen`.

    Understands what these files use: a script's list of groups, an experiment before it, and its choices of groups.
    """
    experiments = [experiment]
    while parent := _parent(experiments[0]):
        experiments.insert(0, parent)
    groups = _choices(read(script)["defaults"])
    for name in experiments:
        groups |= _choices(read(f"experiment/{name}")["defaults"])
    values: dict = {}
    for source in ("base", script):
        _merge(values, read(source))
    for group, option in (groups | chosen).items():
        if option and group not in ("experiment", "scale"):  # the one is merged last, the other is for sweeps
            _merge(values, {group: read(f"{group}/{option}")})
    for name in experiments:
        _merge(values, read(f"experiment/{name}"))
    for key in ("defaults", "hydra"):
        values.pop(key, None)
    return values


def _parent(experiment: str) -> str | None:
    """The experiment that this one builds on: the plain name in its defaults."""
    return next((d for d in read(f"experiment/{experiment}")["defaults"] if isinstance(d, str) and d != "_self_"), None)


def _choices(defaults: list) -> dict[str, str | None]:
    chosen = {key: value for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}
    chosen = {key.removeprefix("override").strip(" /"): value for key, value in chosen.items()}
    return {group: option for group, option in chosen.items() if not group.startswith("hydra")}


def _merge(values: dict, more: dict) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value

"""The jobs of a sweep before they run: how many there are, and in which overrides each differs from the others."""

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from fourierformer.config import NOT_HASHED
from fourierformer.results.comparison import differing_values

LONGEST = 100  # characters of a name; wandb takes 128


class Name(NamedTuple):
    """How a run is called where it stands beside others."""

    label: str = ""  # in a sweep '2/4 softmax lr=0.002', with its seed where seeds differ
    differs: str = ""  # 'lr=0.002': without what is part of the name of every run, its attention and seed

    @property
    def prefix(self) -> str:
        """'[2/4 softmax lr=0.002] ', which begins each of its lines; empty where it runs by itself."""
        return f"[{self.label}] " if self.label else ""

    def say(self, text: str) -> None:
        """Prints a text, each of its lines with the prefix."""
        print("\n".join(self.prefix + line for line in text.splitlines()), flush=True)


def names_of_jobs(config: DictConfig) -> list[Name]:
    """The names of a sweep's jobs, in their order, from the config that Hydra has composed for the sweep itself."""
    parameters = config.hydra.sweeper.get("params") or {}
    return names([*(f"{k}={v}" for k, v in parameters.items()), *config.hydra.overrides.task])


def names(overrides: Sequence[str]) -> list[Name]:
    """The same, from overrides as they are on a command line."""
    jobs = _expanded(overrides)
    labels = differing_values([{"attention": None} | job for job in jobs])
    others = differing_values([{k: v for k, v in job.items() if k not in ("attention", "seed")} for job in jobs])
    return [
        Name(f"{number}/{len(jobs)} {label.removeprefix('attention=')}".strip()[:LONGEST], other[:LONGEST])
        for number, (label, other) in enumerate(zip(labels, others, strict=True), 1)
    ]


def values_of_command() -> str:
    """'lr=0.002 layers=2': the single values that the command of this run sets and that change what it computes."""
    if not HydraConfig.initialized():
        return ""
    (values,) = _expanded(HydraConfig.get().overrides.task)
    single = {k: v for k, v in values.items() if "." in k and k not in NOT_HASHED and k.split(".")[0] not in NOT_HASHED}
    return differing_values([single, {}])[0][:LONGEST]


def _expanded(overrides: Iterable[str]) -> list[dict[str, object]]:
    """The values of each job, {"attention": "softmax", "optim.lr": 0.002}, in the order of Hydra's own sweeper."""
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
    choices: dict[str, list[object]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        is_several = override.is_sweep_override()
        texts = override.sweep_string_iterator() if is_several else [override.get_value_element_as_str()]
        choices[override.get_key_element().lstrip("+~")] = [_number(text) for text in texts]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _number(text: str) -> object:
    """As the config will have it, so that 2e-3 is 0.002 here too."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text

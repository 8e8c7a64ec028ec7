"""Names of runs beside others, of the jobs of a sweep above all: by the values that differ."""

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fourierformer.config import NOT_HASHED
from fourierformer.printing import echo
from fourierformer.results.labels import differing_values

LONGEST = 100  # characters of a name; wandb takes 128


class Name(NamedTuple):
    """The name of a run among others."""

    label: str = ""  # in a sweep '2/4 softmax lr=0.002', with its seed where seeds differ
    differs: str = ""  # 'lr=0.002': without attention and seed, which the name of every run has

    @property
    def prefix(self) -> str:
        """'[2/4 softmax lr=0.002] ', the beginning of each of its lines; empty for a single run."""
        return f"[{self.label}] " if self.label else ""

    def say(self, text: str) -> None:
        """Print a text, each of its lines with the prefix."""
        echo("\n".join(self.prefix + line for line in text.splitlines()), flush=True)


def names(jobs: Sequence[Mapping[str, object]]) -> list[Name]:
    """The names of a sweep's jobs, in their order, from the values of each."""
    labels = differing_values([{"attention": None, **job} for job in jobs])
    others = differing_values([{k: v for k, v in job.items() if k not in ("attention", "seed")} for job in jobs])
    return [
        Name(f"{number}/{len(jobs)} {label.removeprefix('attention=')}".strip()[:LONGEST], other[:LONGEST])
        for number, (label, other) in enumerate(zip(labels, others, strict=True), 1)
    ]


def values_of_command() -> str:
    """'layers=2 lr=0.002': single values but the seed that the command of this run sets and that change its numbers, in
    the order of their keys, so that it is the same for all seeds."""
    if not HydraConfig.initialized():
        return ""
    (values,) = expanded(overrides_of(HydraConfig.get()))
    others = {"seed", *HydraConfig.get().runtime.choices, *NOT_HASHED}
    single = {k: v for k, v in sorted(values.items()) if k not in others and k.split(".")[0] not in NOT_HASHED}
    return differing_values([single, {}])[0][:LONGEST]


def named_attention() -> str | None:
    """The attention that the command of this run names, 'attention=softmax'; None if a file of configs/ chooses it."""
    return next((word for word in overrides_of(HydraConfig.get()) if word.startswith("attention=")), None)


def overrides_of(hydra: HydraConf) -> list[str]:
    """The overrides of a command as they were written: reading them one by one would resolve interpolations in them,
    which are relative to another place."""
    written = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(written, list)
    return [str(override) for override in written]


def config_folder_of(hydra: HydraConf) -> list[str]:
    """The option that gave this command a folder of further configs, as an argument; none without one."""
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    return [f"--config-dir={folder}" for folder in folders]


def expanded(overrides: Iterable[str]) -> list[dict[str, object]]:
    """The values of each job, {"attention": "softmax", "optim.lr": 0.002}, in the order of Hydra's own sweeper."""
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
    choices: dict[str, list[object]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        is_several = override.is_sweep_override()
        texts = override.sweep_string_iterator() if is_several else [override.get_value_element_as_str()]
        choices[override.get_key_element().lstrip("+~")] = [_number(text) for text in texts]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _number(text: str) -> object:
    """The value as in the config, so that 2e-3 is 0.002 here too."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text

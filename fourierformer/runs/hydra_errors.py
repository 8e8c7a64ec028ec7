"""Hydra's errors, each as one line with the nearest valid name."""

import re
import sys
from pathlib import Path

from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fourierformer.config import flatten
from fourierformer.errors import did_you_mean
from fourierformer.provenance import CONFIGS, command_of

NO_NAME = "Config group override must be a string"  # Hydra's ValueError for debug=null and attention=1


def explain(error: Exception) -> str:
    """Hydra's error as one line with the nearest valid name."""
    text = str(error)
    if NO_NAME in text:
        return _no_name()
    options = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if options:
        return _unknown_option(options[1], options[2], text)
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        return _unknown_key(str(cause.full_key), cause.parent_node)  # the node that does not have the key
    foreign = re.search(r"In '(\w+)/(\w+)': Could not override '([^']+)'", text)
    if foreign:
        group, name, lacking = foreign.groups()
        script = Path(sys.argv[0]).name
        right = command_of(re.sub(r"lm|vit", lambda kind: {"lm": "vit", "vit": "lm"}[kind[0]], script))
        return (
            f"{group}={name} is not for {script}: it sets {lacking}=, which {script} does not have. "
            f"Its command: {right} {group}={name}"
        )
    group = re.search(r"Could not override '([^']+)'", text)
    if group:
        return f"unknown key '{group[1]}'{did_you_mean(group[1], _groups())}"
    several = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if several:
        return f"{several[1]} names several values: add -m (--multirun) to run each of them"
    scale = re.search(r"Interpolation key 'scale\.(\w+)' not found", text)
    if scale:
        return f"this scale has no experiment '{scale[1]}': choose another, for example scale=quick (configs/scale)"
    text = re.sub(r"\s*\n\s*", "; ", re.sub(r"\s*See https://hydra\S+ for details", "", text).strip())
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}' ({text}). An override is key=value, quoted for the shell: 'key=[1,2]'"
    return text


def _no_name() -> str:
    """The message for a group whose value is no name, which Hydra does not repeat."""
    groups = _groups()
    for word in sys.argv[1:]:
        group, _, value = word.partition("=")
        wrong = re.search(r"(?i)(?<![^,])(null|true|false|[-+.\de]+)(?![^,])", value)  # of several, in a sweep
        if group in groups and wrong:
            options = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
            none = f" ('~{group}' leaves it out)" if wrong[0] == "null" else ""
            return f"{group}={wrong[0]}: no such {group}{none}. Options: {', '.join(options)}"
    return f"a config group ({', '.join(groups)}) takes the name of one of its files, or is left out: '~debug'"


def _groups() -> list[str]:
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())


def _unknown_option(group: str, name: str, text: str) -> str:
    listed = text.partition("Available options in")[2].partition("Config search path")[0]
    valid = re.findall(r"^\t(\S+)", listed, flags=re.M)
    plugin = group == "hydra/launcher" and re.match("joblib|submitit", name)
    hint = ". It comes with: pip install -e '.[sweep]'" if plugin else f". Options: {', '.join(valid)}" if valid else ""
    near = did_you_mean(name, valid)
    why = near if "did you mean" in near else f" (there is no configs/{group}/{name}.yaml)"
    return f"{group}={name}: no such {group}{why}{hint}"


def _unknown_key(key: str, node: DictConfig) -> str:
    """The message for an unknown key, with the nearest key of the same group, else of the whole config, else all keys
    of the group."""
    group, dot, name = key.rpartition(".")
    chosen = f" for {group}={node['name']}" if group and "name" in node else ""
    near = did_you_mean(name, node if dot else {*node, *_groups()}, prefix=group + dot)
    if "did you mean" in near:
        return f"unknown key '{key}'{chosen}{near}"
    everything = OmegaConf.to_container(node._get_root())
    assert isinstance(everything, dict)  # the root of a config has keys
    elsewhere = [known for known, _ in flatten(everything) if known.rpartition(".")[2] == name]
    if elsewhere:
        return f"unknown key '{key}'{chosen} (did you mean '{elsewhere[0]}'?)"
    return f"unknown key '{key}'{chosen}{did_you_mean(name, node, prefix=group + dot)}"

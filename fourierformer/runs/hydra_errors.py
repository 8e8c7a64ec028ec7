"""Hydra's errors, each as one line with the nearest valid name."""

import re
import sys
from pathlib import Path

from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fourierformer.checking import SYNONYMS
from fourierformer.config import flatten, sections
from fourierformer.errors import did_you_mean
from fourierformer.provenance import CONFIGS
from fourierformer.tasks import tasks

NO_NAME = "Config group override must be a string"  # Hydra's ValueError for debug=null and attention=1


def not_composed(error: Exception) -> str:
    return f"cannot compose these overrides ({error}): a group takes a name of its options"


def explain(error: Exception) -> str:
    """Hydra's error as one line with the nearest valid name."""
    text = str(error)
    if NO_NAME in text:
        return no_name(sys.argv[1:])
    path = re.search(r"Could not find '(\w+)/(/[^']*)'", text)
    if path:
        group, folder = path.groups()
        hint = f". A data set in a folder: data=NAME data.root={folder}" if group == "data" else ""
        return f"{group}={folder}: a config group takes the name of one of its files, not a path{hint}"
    options = re.search(r"Could not find '([^']+)/([^'/]*)'", text)
    if options:
        return _unknown_option(options[1], options[2], text)
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        return _unknown_key(str(cause.full_key), cause.parent_node)  # the node that does not have the key
    words = "Could not override|Invalid Defaults List override"  # of Hydra 1.3 and of 1.4
    foreign = re.search(rf"In '(\w+)/(\w+)': (?:{words}) '/?([^':]+)", text)
    if foreign:
        group, name, lacking = foreign.groups()
        script = Path(sys.argv[0]).name
        right = f". Its command: {_command_with(lacking)} {group}={name}"
        return f"{group}={name} is not for {script}: it sets {lacking}=, which {script} does not have{right}"
    group = re.search(r"Could not override '([^']+)'", text)
    if group and group[1] in _groups():
        return _foreign_group(group[1])
    if group:
        return f"unknown key '{group[1]}'{did_you_mean(group[1], _groups())}"
    several = re.search(r"Ambiguous value for argument '([^']+)'|Sweep parameters '([^=']+)", text)
    if several:
        return f"{several[1] or several[2]} names several values: add -m (--multirun) to run each of them"
    if "does not support sweep type" in text:
        return "a sweep has no interval(): list the values, or use range(); scripts/tune.py searches an interval"
    scale = re.search(r"Interpolation key 'scale\.(\w+)' not found", text)
    if scale:
        return f"this scale has no experiment '{scale[1]}': choose another, for example scale=quick (configs/scale)"
    text = re.sub(r"\s*\n\s*", "; ", re.sub(r"\s*See https://hydra\S+ for details", "", text).strip())
    return _unreadable(error.override) if isinstance(error, OverrideParseException) else text


def _unreadable(override: str) -> str:
    """The message for an override that is no key=value."""
    if "=" not in override:
        key, _, value = override.partition(":")
        return f"'{override}' has no value: write {key}={value.strip() or 'VALUE'}, without blanks"
    key, _, value = override.partition("=")
    if re.search(r"""['"\\[\](){},]""", value):
        return f"cannot read '{override}'. An override is key=value, quoted for the shell: 'key=[1,2]'"
    return f"""cannot read '{override}': a value with such characters has quotes of its own: '{key}="{value}"'"""


def no_name(overrides: list[str]) -> str:
    """The message for a group whose value is no name, which Hydra's message lacks."""
    groups = _groups()
    for word in overrides:
        group, _, value = word.partition("=")
        wrong = re.search(r"(?i)(?<![^,])(null|true|false|[-+.\de]+)(?![^,])", value)  # of several, in a sweep
        if group in groups and wrong:
            options = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
            none = f" ('~{group}' leaves it out)" if wrong[0] == "null" else ""
            return f"{group}={wrong[0]}: no such {group}{none}. Options: {', '.join(options)}"
    return f"a config group ({', '.join(groups)}) takes the name of one of its files, or is left out: '~debug'"


def _foreign_group(group: str) -> str:
    return f"{Path(sys.argv[0]).name} has no {group}=: it belongs to {_command_with(group)}"


def _command_with(group: str) -> str:
    """The command of a task whose config has this group."""
    return next((task.command for task in tasks() if group in sections(task.spec)), "another program")


def _groups() -> list[str]:
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())


def _unknown_option(group: str, name: str, text: str) -> str:
    listed = text.partition("Available options in")[2].partition("Config search path")[0]
    valid = re.findall(r"^\t(\S+)", listed, flags=re.M)
    plugin = group == "hydra/launcher" and re.match("joblib|submitit", name)
    hint = ". It comes with: pip install -e '.[sweep]'" if plugin else f". Options: {', '.join(valid)}" if valid else ""
    near = did_you_mean(name, valid)
    why = near if "did you mean" in near else f" (there is no configs/{group}/{name}.yaml)"
    return f"{group}={name}: no such {group}{why}{'' if why == near and not plugin else hint}"


def _unknown_key(key: str, node: DictConfig) -> str:
    """The message for an unknown key: with the nearest of its group, else of the config, else all keys of its group."""
    group, dot, name = key.rpartition(".")
    if not dot and name in _groups():
        return _foreign_group(name)
    chosen = f" for {group}={node['name']}" if group and "name" in node else ""
    known = [SYNONYMS[name]] if SYNONYMS.get(name) in node else node if dot else {*node, *_groups()}
    near = did_you_mean(SYNONYMS.get(name, name), known, prefix=group + dot)
    everything = OmegaConf.to_container(node._get_root())
    assert isinstance(everything, dict)  # the root of a config has keys
    names = {name, SYNONYMS.get(name, name)}
    elsewhere = [known for known, _ in flatten(everything) if known.rpartition(".")[2] in names]
    if elsewhere and not (dot and "did you mean" in near):  # steps=5 is trainer.steps, not sweep
        return f"unknown key '{key}'{chosen} (did you mean '{elsewhere[0]}'?)"
    if "did you mean" in near:
        return f"unknown key '{key}'{chosen}{near}"
    if chosen and list(node) == ["name"]:
        return f"unknown key '{key}': {group}={node['name']} has no settings"
    return f"unknown key '{key}'{chosen}{did_you_mean(name, node, prefix=group + dot)}"

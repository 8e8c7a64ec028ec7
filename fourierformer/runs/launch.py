"""Start Hydra, and end the process: an exit code, and for every error one line on stderr, Hydra's errors included."""

import errno
import inspect
import itertools
import os
import re
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

try:
    import hydra
except ModuleNotFoundError:
    sys.exit("error: this Python has no hydra-core. In the repository: `make setup`, then `source .venv/bin/activate`")
from hydra._internal.hydra import Hydra
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fourierformer.checking import SYNONYMS
from fourierformer.config import flatten, sections
from fourierformer.errors import (
    Interrupted,
    SetupError,
    UserError,
    did_you_mean,
    first_line,
    interruption_behind,
    one_line,
    os_error_text,
)
from fourierformer.printing import echo
from fourierformer.processes import find_processes
from fourierformer.provenance import CONFIGS
from fourierformer.runs.console_io import print_error, survive_closed_streams
from fourierformer.runs.cpu import let_threads_sleep
from fourierformer.runs.run import run_job
from fourierformer.runs.sweep import PROGRAM, StopSweep, SweepRecord, is_empty, summarise
from fourierformer.tasks import tasks
from fourierformer.training.signals import exit_code, noted_signal

HYDRA_OPTIONS = (  # of `hydra.main`; others are mistakes
    *("help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "shell-completion"),
    *("config-path", "config-name", "config-dir", "experimental-rerun", "info"),
)
# of them, those with which it still trains; with others it prints text, and trains nothing
TRAINING_OPTIONS = ("-m", "--multirun", "-cd", "--config-dir", "-cp", "--config-path", "-cn", "--config-name")
# Hydra 1.3 must be given the version whose defaults hold; 1.4 deprecates that, and asks what a config may create
HYDRA_RULES: dict = {"version_base": "1.3"}
if "execution_whitelist" in inspect.signature(hydra.main).parameters:
    HYDRA_RULES = {"execution_whitelist": [f"{SweepRecord.__module__}.{SweepRecord.__qualname__}"]}
PATHS = ("runs_root", "run_dir", "init_from", "data.root", "data.cache")
NEEDED = int(3.5 * 2**30)  # bytes of addresses: with fewer, torch's C++ code can abort where nothing can be reported
NO_NAME = "Config group override must be a string"  # Hydra's ValueError for debug=null and attention=1


read_mode = Hydra.get_mode


def mode_of_command(self: Hydra, config_name: str | None, overrides: list[str]) -> RunMode | None:
    """The value of `hydra.mode=` on the command line. Hydra composes the whole config to read it, a fifth of a second,
    and then composes it again; -m, which `sweep=` adds, says the rest."""
    named = any(word.lstrip("+").startswith("hydra.mode=") for word in overrides)
    return read_mode(self, config_name, overrides) if named else None


Hydra.get_mode = mode_of_command  # type: ignore[method-assign]


def launch(config_name: str) -> None:
    """Run the command line with a config of configs/, and end the process with an exit code: 0 done, 1 crash, 2 set-up
    or config error, 3 diverged, 130/143 interrupted."""
    survive_closed_streams()
    # with --help or --cfg job Hydra prints text instead of running: then nothing else may be printed
    if mistake := _option_instead_of_value() or _several_sweeps():
        sys.exit(print_error(mistake, 2))
    prints_text = any(word.startswith("-") and not _trains(word) for word in sys.argv[1:])
    try:
        first = find_processes()[0].first
    except UserError as error:
        sys.exit(print_error(error, error.exit_code))
    if first and not prints_text:
        echo("loading ...", flush=True)  # torch takes seconds
        for key in _given_twice():
            echo(f"note: {key}= is given more than once, the last one counts")
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= limit < NEEDED:
            size = f"{limit / 2**30:.1f} GiB of addresses (ulimit -v)"
            echo(f"note: this process may use {size}, loading torch takes about 3: raise the limit if it aborts")
    train = hydra.main(**HYDRA_RULES, config_path=str(CONFIGS), config_name=config_name)(run_job)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors, and `explain` prints them with a way out
    os.environ[PROGRAM] = sys.argv[0]
    os.environ["FOURIERFORMER_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    # hydra/launcher/submitit_slurm.yaml has the name of the plugin's schema on purpose, to be checked against it
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")
    let_threads_sleep()
    # shells do not expand ~ after `key=`, Hydra cannot read it, and creates the folder of a sweep before the config
    sys.argv[1:] = [with_home(word) for word in sys.argv[1:]]
    if not prints_text and any(word.startswith("sweep=") for word in sys.argv[1:]):
        sys.argv.append("-m")  # Hydra 1.4 does not take `hydra.mode` from a file of configs/sweep
    sys.argv[1:] = _options_first(sys.argv[1:])
    SweepRecord.current = None
    try:
        with StopSweep():
            code = _ended(train)
            if SweepRecord.current and code == 0 and is_empty(SweepRecord.current):
                code = print_error("this sweep has no jobs: a range() is empty, or a glob() matches no name", 2)
            elif SweepRecord.current:
                code = _ended(lambda: summarise(SweepRecord.current)) or code
            if number := noted_signal():
                code = exit_code(number)
        sys.stdout.flush()
    except Interrupted as again:
        code = exit_code(again.signal_number)
    sys.exit(code)


def composed(config_name: str, overrides: list[str]) -> DictConfig:
    """The config of a command, without running it. SetupError for a mistake in its overrides."""
    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return hydra.compose(config_name, overrides)
    except HydraException as error:
        raise SetupError(explain(error)) from None
    except ValueError as error:  # of Hydra, for a group that is no name
        raise SetupError(_no_name(overrides) if NO_NAME in str(error) else _not_composed(error)) from None


def _option_instead_of_value() -> str | None:
    """The message for `--lr 0.01`, where Hydra would print its usage."""
    for word in sys.argv[1:]:
        name = word.removeprefix("--").partition("=")[0]
        known = any(option.startswith(name) for option in HYDRA_OPTIONS)  # argparse takes abbreviations
        if word.startswith("--") and not known:
            return f"{word}: values are given as key=value, without --, for example optim.lr=0.01 (--help lists them)"
    return None


def _several_sweeps() -> str | None:
    """The message for `sweep=a,b`, of which Hydra would take the names and not the values of their parameters."""
    several = next((word for word in sys.argv[1:] if re.match(r"\+*sweep=.*[,(*]", word)), None)
    return several and f"{several}: sweep= takes one name of configs/sweep, start several one after the other"


def _trains(word: str) -> bool:
    """Whether Hydra trains with this option, which argparse also takes abbreviated: --config-d=DIR."""
    name = word.partition("=")[0]
    return name in TRAINING_OPTIONS or any(name[:2] == "--" and option.startswith(name) for option in TRAINING_OPTIONS)


def _options_first(words: list[str]) -> list[str]:
    """The options that train, with their values, and then the others: argparse takes overrides on one side of them."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        (options if _trains(word) else others).append(word)
        if _trains(word) and "=" not in word and word not in ("-m", "--multirun"):
            options.extend(itertools.islice(rest, 1))
    return options + others


def _given_twice() -> list[str]:
    counts = Counter(word.partition("=")[0].lstrip("+") for word in sys.argv[1:] if "=" in word)
    return [key for key, count in counts.items() if count > 1]


def quoted(value: str) -> str:
    """A value of an override that Hydra reads as this text."""
    return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", r"\'") + "'"


def with_home(word: str) -> str:
    """An override with the home in the place of ~, which Hydra's grammar takes in quotes only."""
    key, _, value = word.partition("=")
    if key not in PATHS:
        return word
    quote = value[0] if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0] else ""
    return f"{key}={quote}{os.path.expanduser(value.removeprefix(quote).removesuffix(quote))}{quote}"


def _ended(action: Callable[[], int | None]) -> int:
    """Run an action, and print its error in one line. Returns the exit code."""
    try:
        return action() or 0
    except Interrupted as stop:
        if noted_signal():
            echo("stopped before training began; nothing is lost", file=sys.stderr)
        return exit_code(stop.signal_number)
    except SystemExit as end:  # of one run, which has printed its error; or of Hydra's argument parser
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        return print_error(error, error.exit_code)
    except Exception as error:
        if cause := interruption_behind(error):
            return exit_code(cause.signal_number)
        if type(error).__module__.split(".")[0] in ("hydra", "omegaconf") or NO_NAME in str(error):
            return print_error(explain(error), 2)
        if isinstance(error, OSError):
            way_out = "Make room, or choose another folder: runs_root=/some/path"
            if error.errno == errno.ENAMETOOLONG:
                way_out = "A value that names a file is at most 255 bytes long"
            return print_error(f"{os_error_text(error)}. {way_out}", 2)
        if type(error).__module__.startswith(("joblib", "submitit")):  # the process of a job was killed
            way_out = "Or a signal ended it: the same command finishes the sweep"
            return print_error(f"{first_line(error)} {way_out}", 1)
        if 'Could not detect "srun"' in str(error):  # submitit's RuntimeError
            return print_error("hydra/launcher=submitit_slurm: no Slurm here (srun is missing). Use joblib instead", 2)
        if isinstance(error, YAMLError):  # of a file of configs/ or --config-dir
            return print_error(f"a config cannot be read: {one_line(error)}", 2)
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        # raised in Hydra itself, at unexpected overrides (debug=[1,2]), not in the run that it calls
        if frame.f_globals.get("__name__", "").split(".")[0] in ("hydra", "omegaconf"):
            return print_error(_not_composed(error), 2)
        echo(traceback.format_exc(), end="", file=sys.stderr)
        return 1


def _not_composed(error: Exception) -> str:
    return f"cannot compose these overrides ({error}): a group takes a name of its options"


# -- Hydra's errors, each as one line with the nearest valid name ---------------------------------------------------


def explain(error: Exception) -> str:
    """Hydra's error as one line with the nearest valid name."""
    text = str(error)
    if NO_NAME in text:
        return _no_name(sys.argv[1:])
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


def _no_name(overrides: list[str]) -> str:
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

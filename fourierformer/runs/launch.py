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

try:
    import hydra
except ModuleNotFoundError:
    sys.exit("error: this Python has no hydra-core. In the repository: `make setup`, then `source .venv/bin/activate`")
from hydra._internal.hydra import Hydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from yaml import YAMLError

from fourierformer.errors import (
    Interrupted,
    SetupError,
    UserError,
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
from fourierformer.runs.hydra_errors import NO_NAME, explain, no_name, not_composed
from fourierformer.runs.run import run_job
from fourierformer.runs.sweep import PROGRAM, StopSweep, SweepRecord, is_empty, summarise
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
        raise SetupError(no_name(overrides) if NO_NAME in str(error) else not_composed(error)) from None


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
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        read_by_hydra = isinstance(error, UnicodeDecodeError) and any("config_source" in name for name in modules)
        if isinstance(error, YAMLError) or read_by_hydra:  # of a file of configs/ or --config-dir
            return print_error(f"a config cannot be read: {one_line(error)}", 2)
        # raised in Hydra itself, at unexpected overrides (debug=[1,2]), not in the run that it calls
        if modules[-1].split(".")[0] in ("hydra", "omegaconf"):
            return print_error(not_composed(error), 2)
        echo(traceback.format_exc(), end="", file=sys.stderr)
        return 1

"""Starts Hydra, and ends the process: an exit code, and for every error one line on stderr, Hydra's errors included."""

import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable

import hydra

from fourierformer.errors import Interrupted, UserError, first_line, interruption_behind
from fourierformer.processes import find_processes
from fourierformer.provenance import CONFIGS
from fourierformer.runs.cpu import let_threads_sleep
from fourierformer.runs.hydra_errors import NO_NAME, explain
from fourierformer.runs.start import run_job
from fourierformer.runs.stdio import print_error, survive_closed_streams
from fourierformer.runs.sweep import PROGRAM, StopSweep, SweepRecord, summarise
from fourierformer.training.signals import exit_code


def launch(config_name: str) -> None:
    """Runs the command line with a config of configs/, and ends the process with an exit code: 0 done, 1 crash, 2
    set-up or config error, 3 diverged, 130/143 interrupted with a checkpoint saved."""
    survive_closed_streams()
    if find_processes()[0].first and not _asks_for_text(sys.argv[1:]):
        print("loading ...", flush=True)  # torch takes seconds
    train = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(run_job)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors, and `explain` prints them with a way out
    os.environ[PROGRAM] = sys.argv[0]
    os.environ["FOURIERFORMER_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    # our hydra/launcher/submitit_slurm.yaml has the name of the plugin's schema on purpose, to be checked against it
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/.*' is validated against ConfigStore schema")
    let_threads_sleep()
    # Shells leave ~ as it is after `key=`; Hydra makes the folder of a sweep before a config is read.
    sys.argv[1:] = [re.sub(r"^(runs_root|run_dir)=(~.*)", _with_home, word) for word in sys.argv[1:]]
    SweepRecord.current = None
    try:
        with StopSweep() as stop:
            code = _ended(train)
            if SweepRecord.current:
                code = _ended(lambda: summarise(SweepRecord.current)) or code
            if stop.signal_number:
                code = exit_code(stop.signal_number)
        sys.stdout.flush()
    except Interrupted as again:
        code = exit_code(again.signal_number)
    sys.exit(code)


def _asks_for_text(arguments: list[str]) -> bool:
    """Whether Hydra prints something, --help or --cfg job, instead of running: then nothing else may be printed."""
    return any(word.startswith("-") and word not in ("-m", "--multirun") for word in arguments)


def _with_home(override: re.Match) -> str:
    return f"{override[1]}={os.path.expanduser(override[2])}"


def _ended(action: Callable[[], int | None]) -> int:
    """Runs an action, and prints its error in one line. Returns the exit code."""
    try:
        return action() or 0
    except (Interrupted, KeyboardInterrupt) as stop:
        return exit_code(getattr(stop, "signal_number", 2))
    except SystemExit as end:  # of one run, which has printed why; or of Hydra's argument parser
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        return print_error(error, error.exit_code)
    except Exception as error:
        if cause := interruption_behind(error):
            return exit_code(cause.signal_number)
        if type(error).__module__.split(".")[0] in ("hydra", "omegaconf") or NO_NAME in str(error):
            return print_error(explain(error), 2)
        if isinstance(error, OSError):
            return print_error(
                f"{error.filename}: {error.strerror}. Make room, or choose another folder: runs_root=/some/path", 2
            )
        if type(error).__module__.startswith(("joblib", "submitit")):  # the process of a job was killed
            return print_error(first_line(error), 1)
        if 'Could not detect "srun"' in str(error):  # submitit's RuntimeError
            return print_error("hydra/launcher=submitit_slurm: no Slurm here (srun is missing). Use joblib instead", 2)
        if _raised_in_hydra(error):
            return print_error(f"cannot compose these overrides ({error}): a group takes a name of its options", 2)
        traceback.print_exc()
        return 1


def _raised_in_hydra(error: Exception) -> bool:
    """Whether Hydra itself failed, at overrides that it does not expect (debug=[1,2]), not the run that it calls."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__", "").split(".")[0] in ("hydra", "omegaconf")

"""One run, from a composed config to summary.json. The same command has the same run directory, and resumes there.

With several processes (torchrun), each of them executes this; only the first one writes files and to the console.
Torch, which takes seconds to load, is not imported for a run that is done.
"""

import contextlib
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fourierformer.config import RunSpec
from fourierformer.errors import Diverged, Interrupted, SetupError, UserError, interruption_behind, out_of_memory_text
from fourierformer.printing import echo
from fourierformer.processes import Processes, already_reported, find_processes, join_processes
from fourierformer.provenance import CONFIGS
from fourierformer.runs.console_io import print_error, survive_closed_streams
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.job_names import Name, named_attention, values_of_command
from fourierformer.runs.spec import check_mechanism, read_command, stored_spec, task_of
from fourierformer.runs.state import State, begins_anew, state_of
from fourierformer.runs.sweep import NOT_BEGUN, Job, SweepRecord, choices, end_with_parent, in_sweep, show
from fourierformer.tasks import task_named, tasks
from fourierformer.training.signals import StopSignal, exit_code, stop_if_noted

_printed: set[tuple[Path, str]] = set()  # errors of jobs, each with the record of its sweep


def run_job(config: DictConfig) -> None:
    """Run one job of Hydra. A single run that fails ends the process with its exit code; in a sweep its result is
    recorded and the next job starts, unless the sweep runs in this process and was stopped."""
    survive_closed_streams()  # also in a launcher's process
    processes, _ = find_processes()
    job = Job() if in_sweep() and processes.first else None
    if job and SweepRecord.current is None:
        end_with_parent()
    with job.command() if job else contextlib.nullcontext():
        code, error = _outcome(config, job, processes)
    if job:
        job.finish(code, error)
    elif code:
        sys.exit(code)


def _run(config: DictConfig, job: Job | None, processes: Processes) -> None:
    """The steps of a run: config, directory, state, training."""
    with _reported_once(processes):
        _check_start(config, processes)
        spec = read_command(config)
    directory, name = RunDirectory(spec.directory), job.name if job else Name(differs=values_of_command())
    if job and not spec.dry_run:
        job.write(run=str(directory.path.resolve()))
    if _is_done(directory, spec, processes, name):
        _show(directory, job)
        return
    with _reported_once(processes):
        check_mechanism(spec)  # imports torch
    stop_if_noted()
    if spec.dry_run:
        if processes.first:
            _check_origin(spec, directory)
            _print_plan(spec, job)
        return
    from fourierformer.runs.parts import check_device, pick_device
    from fourierformer.runs.train import train

    check_device(spec)
    stop_if_noted()
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(join_processes(pick_device(spec.trainer.device).type))
        state = processes.on_first(lambda: _locked(directory, spec, name, stack))
        if state.word != "done":
            with StopSignal(processes) as stop:
                if job and job.stop_requested():  # the sweep was stopped before StopSignal installed its handlers
                    stop.signal_number = signal.SIGTERM
                train(spec, directory, stop, processes, name)
        if processes.first:
            _show(directory, job)


def _check_start(config: DictConfig, processes: Processes) -> None:
    """SetupError for a sweep in several processes, a scale that chooses nothing, a variant that chooses nothing, a yaml
    with the name of another attention, and a debug option of the other script, whose keys differ."""
    if in_sweep() and processes.world > 1 and SweepRecord.current:
        raise SetupError(
            f"a sweep runs its jobs one after the other in one process, but {processes.world} were started: start "
            "each run with torchrun by itself, or sweep without torchrun, for example with "
            "hydra/launcher=submitit_slurm hydra.launcher.tasks_per_node=4"
        )
    if (scale := choices().get("scale")) not in (None, "paper") and not _reads_scale(choices().get("sweep")):
        raise SetupError(
            f"scale={scale} has no effect here: it chooses the experiments of a sweep of configs/sweep, for example "
            "sweep=table1. A short run: experiment=builtin, or trainer.steps="
        )
    if (variant := choices().get("variant")) and (attention := named_attention()):
        way_out = f"leave {attention} out, or the variant (~variant); single values may change: attention.eps=0"
        raise SetupError(
            f"variant={variant} is a mechanism with settings, in whose place {attention} would run: {way_out}"
        )
    attention = choices().get("attention")
    # read_command refuses a name that cannot be resolved
    name = OmegaConf.select(config, "attention.name", throw_on_resolution_failure=False)
    if attention and isinstance(name, str) and name != attention and _is_mechanism(attention):
        raise SetupError(  # its yaml was copied, say; a yaml of another name is a mechanism with settings
            f"attention={attention} has attention.name={name}, and {name} would run: give its yaml name: {attention}, "
            f"or choose attention={name}"
        )
    chosen = choices().get("debug")
    owners = [task for task in tasks() if chosen and task.debug == chosen]
    task = task_named(config.get("task"))
    if owners and task.script not in [owner.script for owner in owners]:
        raise SetupError(f"debug={chosen} is for task={owners[0].name}: {task.command} debug={task.debug}")
    if owners and owners[0].experiment and task.experiment and task.debug not in (chosen, None):
        raise SetupError(f"debug={chosen} needs experiment={owners[0].experiment}; here: debug={task.debug}")


def _is_mechanism(name: str) -> bool:
    from fourierformer.attention import names  # loads torch, which few commands need here

    return name in names()


def _reads_scale(sweep: str | None) -> bool:
    """Whether the experiments of a sweep depend on scale=; of one in a folder of the user's that is not known."""
    file = CONFIGS / "sweep" / f"{sweep}.yaml"
    return sweep is not None and (not file.is_file() or "${scale." in file.read_text(encoding="utf-8"))


def _is_done(directory: RunDirectory, spec: RunSpec, processes: Processes, name: Name) -> bool:
    """Whether the run is complete, decided without torch and without a lock. If so, also prints that and removes
    leftover files."""
    if spec.fresh or spec.dry_run or processes.world > 1:
        return False
    directory.check_ours()
    state = _state(directory, spec)
    if state.word != "done":
        return False
    directory.remove_litter()  # left by a process killed after its last result
    name.say(state.sentence)
    return True


def _locked(directory: RunDirectory, spec: RunSpec, name: Name, stack: contextlib.ExitStack) -> State:
    """Check the data and lock the run directory, before anything takes time. Prints and returns the state."""
    task_of(spec).check_available(spec)
    directory.check_ours()
    _check_origin(spec, directory)
    if begins_anew(spec, directory):
        if aside := directory.set_aside():
            name.say(f"fresh=true: the earlier run is now {aside}")
    elif spec.fresh:
        name.say("fresh=true: this job was started again and goes on with its run")
    stack.enter_context(directory.lock())
    state = _state(directory, spec)
    name.say(state.sentence)
    return state


def _check_origin(spec: RunSpec, directory: RunDirectory) -> None:
    """SetupError where init_from= is no run. A run that resumes needs it no more."""
    if spec.init_from and (begins_anew(spec, directory) or not directory.checkpoints.is_dir()):
        stored_spec(Path(spec.init_from))


def _state(directory: RunDirectory, spec: RunSpec) -> State:
    state = state_of(directory, spec)
    if state.word == "another run":
        raise SetupError(state.sentence)
    return state


def _show(directory: RunDirectory, job: Job | None) -> None:
    if job is None:  # a sweep ends with one table of all its runs
        show([directory.path], report=directory.report)


def _print_plan(spec: RunSpec, job: Job | None) -> None:
    from fourierformer.runs.plan import plan_of_job, print_plan

    if job is None:
        print_plan(spec)
        return
    plan, problem = plan_of_job(spec, job.name.say)
    job.write(plan=plan)
    if problem:
        raise SetupError("its data is missing; dry_run=true of this job alone says how to get it")


@contextlib.contextmanager
def _reported_once(processes: Processes) -> Iterator[None]:
    """A context for errors that all processes raise: the first one prints them."""
    try:
        yield
    except UserError as error:
        error.already_reported = not processes.first
        raise


def _outcome(config: DictConfig, job: Job | None, processes: Processes) -> tuple[int, str | None]:
    """Run a job, and print its error on stderr. Returns exit code and error."""
    label = job.name.prefix if job else ""
    try:
        if job and job.stop_requested():
            return exit_code(signal.SIGTERM), NOT_BEGUN
        stop_if_noted()
        _run(config, job, processes)
        return 0, None
    except UserError as error:
        # errors common to all processes are printed by the first one
        repeated = job is not None and not _is_new(error, job)
        silent = already_reported(error) or (not processes.first and isinstance(error, Diverged))
        silent = silent or (repeated and config.get("dry_run") is True)  # the last lines of a plan count them
        label = label if processes.first else f"process {processes.rank}: "
        text = "the same error" if repeated else error
        code = error.exit_code if silent else print_error(f"{label}{text}", error.exit_code)
        if job and error.ends_sweep and SweepRecord.current:
            job.finish(code, str(error))
            sys.exit(code)
        return code, str(error)
    except Interrupted as stop:
        return _stopped(stop, job)
    except OSError as error:  # a disk error without a message of its own, or too little memory for a library
        if short := out_of_memory_text(error):
            return print_error(f"{label}{short}", 1), short
        reason = f"{error.filename or 'the disk'}: {error.strerror or error}"
        return print_error(f"{label}{reason}. Make room or fix the permissions; the same command resumes.", 1), reason
    except Exception as error:
        if cause := interruption_behind(error):
            return _stopped(cause, job)
        short = out_of_memory_text(error)
        if short and not already_reported(error):
            print_error(f"{label}{short}", 1)
        elif not already_reported(error):
            echo(traceback.format_exc(), end="", file=sys.stderr)
        return 1, short or f"{type(error).__name__}: {error}"


def _is_new(error: UserError, job: Job) -> bool:
    """Whether no earlier job of its sweep in this process printed the same."""
    earlier = (job.record, str(error)) in _printed
    _printed.add((job.record, str(error)))
    return not earlier


def _stopped(stop: Interrupted, job: Job | None) -> tuple[int, str]:
    code = exit_code(stop.signal_number)
    if job:
        job.write(exit_code=code, error=str(stop))
    if job is None or SweepRecord.current:  # a sweep in this process ends, too
        raise stop
    return code, str(stop)

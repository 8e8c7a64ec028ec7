"""One run, from a composed config to summary.json. The same command has the same run directory, and resumes there.

With several processes (torchrun), each of them executes this; the first one has the run directory and the console.
"""

import contextlib
import signal
import sys
import traceback

from omegaconf import DictConfig

from fourierformer.config import RunSpec, differences, from_yaml
from fourierformer.errors import Diverged, Interrupted, SetupError, UserError, interruption_behind, out_of_memory_text
from fourierformer.processes import Processes, already_reported, find_processes, join_processes
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.jobs import Name, values_of_command
from fourierformer.runs.measure import measured_in, read_or_none
from fourierformer.runs.parts import check_device, pick_device
from fourierformer.runs.plan import plan_of_job, print_plan
from fourierformer.runs.same_data import check_before_loading
from fourierformer.runs.spec import read_command, task_of
from fourierformer.runs.start import check_debug, done_message
from fourierformer.runs.stdio import print_error, survive_closed_streams
from fourierformer.runs.sweep import NOT_BEGUN, Job, SweepRecord, in_sweep, show
from fourierformer.runs.train import train_and_measure
from fourierformer.training.signals import StopSignal, exit_code


def main(config: DictConfig) -> None:
    """Runs one job, called by Hydra. A single run that fails ends the process with its exit code; in a sweep the result
    goes into the record, and the next job begins."""
    survive_closed_streams()  # in a process of a launcher, too
    processes, _ = find_processes()
    job = Job() if in_sweep() and processes.first else None
    with job.command() if job else contextlib.nullcontext():
        code, error = _outcome(config, job, processes)
    if job:
        job.finish(code, error)
    elif code:
        sys.exit(code)


def _outcome(config: DictConfig, job: Job | None, processes: Processes) -> tuple[int, str | None]:
    """Runs a job, and prints its error on stderr. Returns exit code and error."""
    try:
        if job and job.stop_asked():
            return 143, NOT_BEGUN
        spec = _checked(config, processes)
        if not spec.dry_run:
            _run(spec, job)
        elif job:
            plan, problem = plan_of_job(spec, job.name.say)
            job.write(plan=plan)
            if problem:
                raise SetupError("its data is missing; dry_run=true of this job alone says how to get it")
        elif processes.first:
            print_plan(spec)
        return 0, None
    except UserError as error:
        # an error of all processes is printed by the first one
        silent = already_reported(error) or (not processes.first and isinstance(error, Diverged))
        label = job.name.prefix if job else "" if processes.first else f"process {processes.rank}: "
        return error.exit_code if silent else print_error(f"{label}{error}", error.exit_code), str(error)
    except Interrupted as stop:
        return _stopped(stop, job)
    except OSError as error:  # of the disk, at a place without a message of its own
        label, told = job.name.prefix if job else "", f"{error.filename or 'the disk'}: {error.strerror or error}"
        return print_error(f"{label}{told}. Make room or fix the permissions; the same command resumes.", 1), told
    except Exception as error:
        if cause := interruption_behind(error):
            return _stopped(cause, job)
        short = out_of_memory_text(error)
        if not already_reported(error):
            if short:
                print_error(f"{job.name.prefix if job else ''}{short}", 1)
            else:
                traceback.print_exc()
        return 1, short or f"{type(error).__name__}: {error}"


def _stopped(stop: Interrupted, job: Job | None) -> tuple[int, str]:
    code = exit_code(stop.signal_number)
    if job:
        job.write(exit_code=code, error=str(stop))
    if job is None or SweepRecord.current:  # where the sweep runs in this process too, it ends as well
        raise stop
    return code, str(stop)


def _checked(config: DictConfig, processes: Processes) -> RunSpec:
    """The config as a spec. All processes raise the same error for a mistake in it; only the first one reports it."""
    try:
        if in_sweep() and processes.world > 1 and SweepRecord.current:
            raise SetupError(
                f"a sweep runs its jobs one after the other in one process, but {processes.world} were started: start "
                "each run with torchrun by itself, or sweep without torchrun, for example with "
                "hydra/launcher=submitit_slurm hydra.launcher.tasks_per_node=4"
            )
        check_debug(config)
        return read_command(config)
    except UserError as error:
        error.already_reported = not processes.first
        raise


def _run(spec: RunSpec, job: Job | None) -> None:
    directory, name = RunDirectory(spec.directory), job.name if job else Name(differs=values_of_command())
    check_device(spec)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(join_processes(pick_device(spec.trainer.device).type))
        processes.on_first(lambda: _prepare(spec, directory, job, name.say, stack))
        done = processes.on_first(lambda: _is_complete(directory, spec))
        if done and processes.first:
            name.say(done_message(directory, spec.tracker.name))
        if not done:
            with StopSignal(processes) as stop, _status(directory, processes):
                if job and job.stop_asked():  # its signal came before this process had a handler
                    stop.signal_number = signal.SIGTERM
                stop.poll()
                train_and_measure(spec, directory, stop, processes, name)
        if job is None and processes.first:
            show([directory.path], report=directory.path / "report.html")


def _prepare(spec: RunSpec, directory: RunDirectory, job: Job | None, say, stack: contextlib.ExitStack) -> None:
    """Checks the data and locks the run directory, before anything takes time."""
    if job:
        job.write(run=str(directory.path.resolve()))
    task_of(spec).check_available(spec)
    directory.check_ours()
    if spec.fresh and (aside := directory.set_aside()):
        say(f"fresh=true: the earlier run is now {aside}")
    stack.enter_context(directory.lock())


def _is_complete(directory: RunDirectory, spec: RunSpec) -> bool:
    """Whether the run is complete. SetupError for a directory with a run of another config (possible with run_dir=), or
    of other data."""
    if not directory.config.exists():
        return False
    changed = differences(from_yaml(directory.config), spec.values)
    if changed:
        raise SetupError(
            f"{directory.path} holds a run of another config: {'; '.join(changed)}. "
            "Choose another run_dir=, or fresh=true to move that run aside."
        )
    check_before_loading(spec, directory, read_or_none(directory.meta) or {})
    status, summary = read_or_none(directory.status), read_or_none(directory.summary)
    if status is None or summary is None or status.get("state") != "completed":
        return False
    measured = measured_in(summary)
    return all(protocol in measured.get(split, {}) for split, protocol in task_of(spec).measured_at_end(spec))


class _status:
    """A context that writes to status.json how the run inside it ends."""

    def __init__(self, directory: RunDirectory, processes: Processes):
        self.directory, self.processes = directory, processes

    def __enter__(self):
        if self.processes.first:
            self.directory.write_status("running")

    def __exit__(self, kind, error, trace):
        if not self.processes.first:
            return
        if error is None:
            self.directory.write_status("completed")
            return
        stopped = (Interrupted, KeyboardInterrupt, SystemExit)
        state = "diverged" if kind is Diverged else "interrupted" if issubclass(kind, stopped) else "failed"
        text = "".join(traceback.format_exception(kind, error, trace))
        is_sentence = isinstance(error, UserError | Interrupted)
        message = str(error) if is_sentence else f"{kind.__name__}: {error}"
        self.directory.write_status(state, error=message, traceback=text)

"""Print the plan of a command (dry_run=true): size, steps, memory, directory, cost. Nothing is trained or written."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from fourierformer.config import RunSpec, from_yaml
from fourierformer.errors import SetupError, UserError
from fourierformer.files import read_json, size_text
from fourierformer.printing import echo
from fourierformer.processes import find_processes
from fourierformer.provenance import describe
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import check_device, config_notes, pick_device
from fourierformer.runs.spec import attention_of, task_of
from fourierformer.runs.state import State, begins_anew, state_of
from fourierformer.runs.sweep import hours_text
from fourierformer.tasks import AnyCorpus
from fourierformer.training.checkpoint import Checkpoints


def print_plan(spec: RunSpec) -> None:
    """Print the plan of one run, then SetupError if its data is missing or this machine cannot run it."""
    task, device = task_of(spec), pick_device(spec.trainer.device)
    corpus, problem = _data(spec)
    epoch = task.steps_per_epoch(spec, corpus)
    with _WithoutWeights():
        model = task.build_model(spec, attention_of(spec), corpus)
    parameters, state = sum(p.numel() for p in model.parameters()), _state(spec)
    unknown = "unknown until a run with another seed is finished here; a run that is started shows its ETA"
    _, micro, _ = find_processes()[0].share(spec.global_batch_size, spec.trainer.micro_batch_size)
    # 16 per parameter: weight, gradient and two Adam moments; and the activations of one micro-batch
    memory = 16 * parameters + task.activation_bytes(spec, micro)
    lines = {
        "model": f"{spec.model.name} with {spec.attention.name} attention",
        "device": f"{device}, {spec.trainer.precision}",
        "parameters": f"{parameters:,}",
        "length": _steps(spec, corpus),
        "memory": f"about {size_text(memory)} to train, per process",
        "data": str(problem or task.data_line(corpus)),
        "": "\n".join(
            [*(corpus.notes if corpus else []), *(config_notes(spec, epoch or 1) if epoch or corpus else [])]
        ),
        "directory": f"{spec.directory} ({state.word})",
        "cost": "none: it is done" if state.word == "done" else _hours(spec, corpus)[1] or unknown,
    }
    for name, text in lines.items():
        for number, line in enumerate(text.splitlines()):
            echo(f"{'' if number else name:12} {line}")
    if state.word == "another run":
        raise SetupError(state.sentence)
    check_device(spec)
    if problem:
        raise SetupError("the data is missing (see above): nothing would run")


def plan_of_job(spec: RunSpec, say: Callable[[str], None]) -> tuple[dict, SetupError | None]:
    """Print the plan of a sweep's job in one line. Returns whether it is done, its hours, and the error of its data.
    SetupError where its directory holds another run."""
    corpus, problem = _data(spec)
    state = _state(spec)
    if state.word == "another run":
        raise SetupError(state.sentence)
    check_device(spec)
    hours, origin = (0.0, "") if state.word == "done" else _hours(spec, corpus)
    say(f"{spec.directory} ({state.word}): {_steps(spec, corpus)}{f', {origin}' if origin else ''}")
    facts = {"done": state.word == "done", "hours": hours, "device": _kind(spec)}
    return facts | {"directory": str(spec.directory)}, problem


def _state(spec: RunSpec) -> State:
    """What the command would find: with fresh=true it moves an earlier run aside."""
    directory = RunDirectory(spec.directory)
    directory.check_ours()
    return State("new", "") if begins_anew(spec, directory) else state_of(directory, spec)


class _WithoutWeights(TorchFunctionMode):
    """Create uninitialised tensors on the meta device, without memory, and skip their random initialisation. With all
    tensors there (torch.device("meta")), arithmetic would import the compiler, which takes seconds."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.empty:
            return func(*args, **kwargs | {"device": "meta"})
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            tensor = args[0] if args else kwargs["tensor"]  # a tensor's method, or torch.nn.init's function
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def _data(spec: RunSpec) -> tuple[AnyCorpus | None, SetupError | None]:
    """The data, or the error of loading it."""
    task = task_of(spec)
    try:
        task.check_available(spec)
        return task.load_data(spec, lambda line: None), None
    except SetupError as error:
        return None, error


def _kind(spec: RunSpec) -> str:
    return "GPU" if pick_device(spec.trainer.device).type == "cuda" else "CPU"


def _steps(spec: RunSpec, corpus) -> str:
    """The line about steps, which depend on the data where the length is given in epochs."""
    task = task_of(spec)
    samples, epoch = task.samples_per_step(spec), task.steps_per_epoch(spec, corpus)
    if spec.trainer.steps is None and epoch is None:
        return f"{spec.trainer.epochs:g} epochs in steps of {samples:,} {task.unit}"
    steps = spec.trainer.in_steps(epoch or 1).steps
    text = f"{steps:,} steps of {samples:,} {task.unit} = {steps * samples:,} {task.unit}"
    return text + (f" = {steps / epoch:.1f} epochs of {epoch:,} steps" if epoch else "")


def _hours(spec: RunSpec, corpus) -> tuple[float | None, str]:
    """The hours of the steps that are left and their origin, a finished run with another seed on equal hardware; else
    (None, "")."""
    epoch = task_of(spec).steps_per_epoch(spec, corpus)
    device, here = pick_device(spec.trainer.device).type, describe()[0]
    if spec.trainer.steps is None and epoch is None:
        return None, ""
    for path in sorted(spec.directory.parent.glob("*/summary.json")):
        if seconds := _seconds_per_step(path.parent, spec, device, here):
            directory = RunDirectory(spec.directory)
            trained = 0 if begins_anew(spec, directory) else Checkpoints(directory.checkpoints).newest_step()
            hours = seconds * max(0, spec.trainer.in_steps(epoch or 1).steps - trained) / 3600
            return hours, f"{hours_text(hours, _kind(spec))}: {seconds:.3g} s per step, as in {path.parent.name}"
    return None, ""


def _seconds_per_step(run: Path, spec: RunSpec, device: str, here: dict) -> float | None:
    """The device time of a step: 4 for a second on four GPUs."""
    directory = RunDirectory(run)
    try:
        summary, meta = read_json(directory.summary) or {}, read_json(directory.meta) or {}
        same_machine = all(meta.get(key) == here[key] for key in ("cpu", "cpus", "gpus"))
        if not (same_machine and summary.get("group") == spec.group and summary.get("device") == device):
            return None
        if from_yaml(directory.config)["trainer"]["compile"] != spec.trainer.compile or not summary.get("steps"):
            return None
    except UserError:  # damaged, which that run reports when it is started again
        return None
    return summary["seconds"] * summary.get("processes", 1) / summary["steps"]

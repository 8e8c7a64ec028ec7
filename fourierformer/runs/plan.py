"""The plan of a command (dry_run=true): what it would do, and how long it would take. In a sweep one line per job."""

from collections.abc import Callable

import torch

from fourierformer.config import RunSpec, to_yaml
from fourierformer.errors import SetupError
from fourierformer.processes import find_processes
from fourierformer.runs.cost import StepCost, hours_text, step_cost
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import pick_device
from fourierformer.runs.spec import attention_of, task_of
from fourierformer.tasks import AnyCorpus

DONE = "done"


def print_plan(spec: RunSpec) -> None:
    """Prints size, steps, memory, data, directory and cost, then the config. SetupError if data is missing, after the
    rest."""
    task = task_of(spec)
    corpus, problem = _data(spec)
    with torch.device("meta"):
        model = task.build_model(spec, attention_of(spec), corpus)
    parameters = sum(p.numel() for p in model.parameters())
    lines = {
        "device": f"{pick_device(spec.trainer.device)}, {spec.trainer.precision}",
        "parameters": f"{parameters:,}",
        "steps": _steps(spec, corpus),
        "memory": f"about {_memory(spec, parameters) / 2**30:.1f} GiB to train, per process",
        "data": str(problem or task.data_line(corpus)),
    }
    for name, text in lines.items():
        print(f"{name:12} {text}")
    for note in corpus.notes if corpus else []:
        print(f"{'':12} {note}")
    print(f"directory    {spec.directory} ({_state(spec)})", flush=True)
    cost = step_cost(spec, corpus)
    if cost is None:
        print("cost         unknown: no sizes of this data are published, by which it could be timed without it")
    else:
        hours = hours_text(cost.hours(_length(spec, corpus)), _device(spec))
        print(f"cost         {hours}: {cost.seconds:.3g} s per step ({_origin(cost, corpus)})")
    print(f"\n{to_yaml(spec.values)}")
    if problem:
        raise SetupError("the data is missing (see above): nothing would run")


def plan_of_job(spec: RunSpec, say: Callable[[str], None]) -> tuple[dict, SetupError | None]:
    """Prints the plan of a sweep's job in one line. Returns its cost, which is 0 if it is done, and what is wrong with
    its data."""
    state, device = _state(spec), _device(spec)
    corpus, problem = _data(spec)
    cost = step_cost(spec, corpus)
    if cost is None:
        raise problem or SetupError("nothing to time")
    steps = _length(spec, corpus)
    hours = cost.hours(steps) if state != DONE else 0.0
    what = f"{steps:,} steps of {cost.seconds:.3g} s, {hours_text(hours, device)}"
    say(f"{spec.directory} ({state}): {what} ({_origin(cost, corpus)})")
    return {"hours": hours, "device": device}, problem


def _data(spec: RunSpec) -> tuple[AnyCorpus | None, SetupError | None]:
    """The data, or what is wrong with it."""
    task = task_of(spec)
    try:
        task.check_available(spec)
        return task.load_data(spec, lambda line: None), None
    except SetupError as error:
        return None, error


def _origin(cost: StepCost, corpus: AnyCorpus | None) -> str:
    return cost.origin if corpus else f"{cost.origin}, on random data in place of the missing one"


def _state(spec: RunSpec) -> str:
    state = (RunDirectory(spec.directory).read_status() or {}).get("state")
    return DONE if state == "completed" else f"{state}: resumes" if state else "new"


def _device(spec: RunSpec) -> str:
    return "GPU" if pick_device(spec.trainer.device).type == "cuda" else "CPU"


def _length(spec: RunSpec, corpus) -> int:
    return spec.trainer.in_steps(task_of(spec).steps_per_epoch(spec, corpus) or 1).steps


def _steps(spec: RunSpec, corpus) -> str:
    """The line about steps; they depend on the data where the length is given in epochs."""
    task = task_of(spec)
    samples, epoch = task.samples_per_step(spec), task.steps_per_epoch(spec, corpus)
    if spec.trainer.steps is None and epoch is None:
        return f"{spec.trainer.epochs:g} epochs of steps of {samples:,} {task.unit}"
    steps = _length(spec, corpus)
    text = f"{steps:,} of {samples:,} {task.unit} = {steps * samples:,} {task.unit}"
    return text + (f" = {steps / epoch:.1f} epochs of {epoch:,} steps" if epoch else "")


def _memory(spec: RunSpec, parameters: int) -> int:
    """Bytes: weights, gradients and two Adam moments (16 per parameter), and the activations of one micro-batch."""
    share = -(-spec.global_batch_size // find_processes()[0].world)
    micro = min(spec.trainer.micro_batch_size or share, share)
    return 16 * parameters + task_of(spec).activation_bytes(spec, micro)

"""dry_run=true: what a command would do and cost, before it does. In a sweep, one line per job."""

import torch

from fourierformer import config as configs
from fourierformer.errors import SetupError
from fourierformer.runs.cost import step_cost
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.parts import domain, make_attention, pick_device
from fourierformer.runs.sweep import hours_text
from fourierformer.training.config import TrainerConfig
from fourierformer.training.processes import find_processes

DONE = "done"


def print_plan(values: dict) -> None:
    """Config, size, steps, memory, data, directory. Missing data is an error, but only after the rest was said."""
    task, trainer = domain(values), TrainerConfig(**values["trainer"])
    corpus = problem = None
    try:
        task.check_available(values)
        corpus = task.load_data(values, lambda line: None)
    except SetupError as error:
        problem = error
    with torch.device("meta"):
        model = task.build_model(values, make_attention(values), corpus)
    parameters = sum(p.numel() for p in model.parameters())
    print(configs.to_yaml(values))
    lines = {
        "device": f"{pick_device(trainer.device)}, {trainer.precision}",
        "parameters": f"{parameters:,}",
        "steps": _steps(values, corpus),
        "memory": f"about {_memory(values, parameters) / 2**30:.1f} GiB to train, per process",
        "data": str(problem or "found"),
        **task.plan_lines(values, corpus),
    }
    for name, text in lines.items():
        print(f"{name:12} {text}")
    for note in corpus.notes if corpus else []:
        print(f"{'':12} {note}")
    print(f"directory    {configs.run_directory(values)} ({_state(values)})")
    if problem:
        raise SetupError("the data is missing (see above): nothing would run")
    cost = step_cost(values)
    hours = hours_text(cost.hours(_length(values, corpus)), _device(values))
    print(f"cost         {hours}: {cost.seconds:.3g} s per step ({cost.origin})")


def plan_of_job(values: dict) -> dict:
    """The same in a line, and for the total of a sweep: what one of its jobs would cost. Done jobs cost nothing."""
    task, state = domain(values), _state(values)
    task.check_available(values)
    corpus = task.load_data(values, lambda line: None)
    cost, steps = step_cost(values), _length(values, corpus)
    hours = cost.hours(steps) if state != DONE else 0.0
    device = _device(values)
    what = f"{steps:,} steps of {cost.seconds:.3g} s, {hours_text(hours, device)}"
    print(f"{configs.run_directory(values)} ({state}): {what} ({cost.origin})")
    return {"hours": hours, "device": device}


def _state(values: dict) -> str:
    directory = RunDirectory(configs.run_directory(values))
    state = (directory.read_status() or {}).get("state")
    return DONE if state == "completed" else f"{state}: resumes" if state else "new"


def _device(values: dict) -> str:
    return "GPU" if pick_device(values["trainer"]["device"]).type == "cuda" else "CPU"


def _length(values: dict, corpus) -> int:
    task = domain(values)
    return TrainerConfig(**values["trainer"]).in_steps(task.steps_per_epoch(values, corpus) or 1).steps


def _steps(values: dict, corpus) -> str:
    """Steps need the data where a length is given in epochs."""
    task, trainer = domain(values), TrainerConfig(**values["trainer"])
    samples, unit = task.samples_per_step(values), task.UNIT
    epoch = task.steps_per_epoch(values, corpus)
    if trainer.steps is None and epoch is None:
        return f"{trainer.epochs:g} epochs of steps of {samples:,} {unit}"
    steps = _length(values, corpus)
    text = f"{steps:,} of {samples:,} {unit} = {steps * samples:,} {unit}"
    return text + (f" = {steps / epoch:.1f} epochs of {epoch:,} steps" if epoch else "")


def _memory(values: dict, parameters: int) -> int:
    """Bytes: weights, gradients and two Adam moments (16 per parameter), and the activations of one micro-batch."""
    share = -(-values["global_batch_size"] // find_processes()[0].world)
    micro = min(values["trainer"]["micro_batch_size"] or share, share)
    return 16 * parameters + domain(values).activation_bytes(values, micro)

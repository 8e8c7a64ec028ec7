"""dry_run=true: what a command would do, before it costs anything."""

import torch

from fourierformer import config as configs
from fourierformer.build import domain, make_attention, pick_device
from fourierformer.errors import SetupError
from fourierformer.processes import find_processes
from fourierformer.training.config import TrainerConfig


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
    directory = configs.run_directory(values)
    print(f"directory    {directory} ({'exists: resumes or is done' if directory.exists() else 'new'})")
    if problem:
        raise SetupError("the data is missing (see above): nothing would run")


def _steps(values: dict, corpus) -> str:
    """Steps need the data where a length is given in epochs."""
    task, trainer = domain(values), TrainerConfig(**values["trainer"])
    samples, unit = task.samples_per_step(values), task.UNIT
    epoch = task.steps_per_epoch(values, corpus)
    if trainer.steps is None and epoch is None:
        return f"{trainer.epochs:g} epochs of steps of {samples:,} {unit}"
    steps = trainer.in_steps(epoch or 1).steps
    text = f"{steps:,} of {samples:,} {unit} = {steps * samples:,} {unit}"
    return text + (f" = {steps / epoch:.1f} epochs of {epoch:,} steps" if epoch else "")


def _memory(values: dict, parameters: int) -> int:
    """Bytes: weights, gradients and two Adam moments (16 per parameter), and the activations of one micro-batch."""
    share = -(-values["global_batch_size"] // find_processes()[0].world)
    micro = min(values["trainer"]["micro_batch_size"] or share, share)
    return 16 * parameters + domain(values).activation_bytes(values, micro)

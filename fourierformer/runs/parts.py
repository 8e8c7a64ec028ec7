"""Plain config values -> the objects of a run: data, model, task, device. Shared by training and by the scripts.

What language and vision do not share stands in build/language.py and build/vision.py, each with the same functions.
"""

import os
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from fourierformer import attention
from fourierformer.config import RunConfig, Schema, TrackerConfig, annotations, checked, from_yaml
from fourierformer.errors import SetupError
from fourierformer.runs.cpu import keep_freed_memory
from fourierformer.tasks.base import Task
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerConfig
from fourierformer.training.optim import OptimConfig
from fourierformer.training.precision import set_matmul_precision
from fourierformer.training.processes import Processes, find_processes
from fourierformer.training.schedule import ScheduleConfig

TASKS = ("language", "vision")


@dataclass
class Parts:
    """Everything a run is made of, before optimizer and checkpoints."""

    values: dict
    corpus: object  # data.text.Corpus or data.images.ImageCorpus: both have `name` and `notes`
    model: nn.Module
    task: Task
    device: torch.device
    trainer: TrainerConfig  # with every length in steps
    processes: Processes

    @property
    def attention(self) -> attention.Attention:
        """One of the layers: they differ in nothing but their weights."""
        return next(m for m in self.model.modules() if isinstance(m, attention.Attention))

    @property
    def backend(self) -> str:
        return self.attention.backend_name(self.device)


def domain(values: dict) -> ModuleType:
    """build/language.py or build/vision.py."""
    return import_module(f"{__name__}.{values['task']}")


def schema(task: ModuleType, attention_name: str) -> Schema:
    """Which keys a config may have, from the signatures of what they configure."""
    knobs = {"name": str, **annotations(attention.knobs(attention_name))}
    owners = {
        "": RunConfig,
        "optim": OptimConfig,
        "schedule": ScheduleConfig,
        "tracker": TrackerConfig,
        "trainer": TrainerConfig,
        **task.SECTIONS,
    }
    return {section: annotations(owner) for section, owner in owners.items()} | {"attention": knobs}


def checked_values(config) -> dict:
    """A composed or stored config as plain values, held against the schema."""
    name = (config.get("attention") or {}).get("name")
    if name is None:
        raise SetupError("no attention chosen: attention=fourier, or another of " + ", ".join(attention.available()))
    if config.get("task") not in TASKS:
        raise SetupError(f"task={config.get('task')}: expected {' or '.join(TASKS)}")
    _check_groups(config)
    values = checked(config, schema(domain(config), name))
    _check_ranges(values)
    return values


def _check_groups(config) -> None:
    """A group made for the other script would only fail at one of its keys, with a misleading message."""
    task = domain(config)
    for section in ("model", "data"):
        chosen = config.get(section) or {}
        foreign = task.FOREIGN_KEYS[section]
        if foreign in chosen:
            origin = f"{section}={chosen.get('name')}"
            raise SetupError(f"{origin} (of {config.get('experiment_name')}) is not for {task.SCRIPT}: {task.OTHER}")


def _check_ranges(values: dict) -> None:
    """The right type is not yet a possible value; what each part refuses, it refuses here, before data and model."""
    RunConfig(**{key: values[key] for key in annotations(RunConfig)})
    OptimConfig(**values["optim"])
    ScheduleConfig(**values["schedule"])
    for section, owner in domain(values).SECTIONS.items():
        owner(**values[section])
    micro, batch = TrainerConfig(**values["trainer"]).micro_batch_size, values["global_batch_size"]
    if micro is not None and micro > batch:
        raise SetupError(f"trainer.micro_batch_size={micro} is a part of global_batch_size={batch}: at most {batch}")
    world = find_processes()[0].world
    if batch % world:
        raise SetupError(
            f"global_batch_size={batch} cannot be shared equally by {world} processes: choose a multiple of {world}"
        )
    _one_attention(values)


def _one_attention(values: dict) -> attention.Attention:
    """A layer without memory, to ask what it refuses."""
    with torch.device("meta"):
        return make_attention(values)(domain(values).geometry(values))


def check_device(values: dict) -> None:
    """Whether this machine has the device and the attention's implementation for it."""
    device = pick_device(values["trainer"]["device"])
    try:
        _one_attention(values).backend_name(device)
    except ValueError as error:
        raise SetupError(f"attention={values['attention']['name']} on {device}: {error}") from None


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SetupError(f"trainer.device='{name}': expected auto, cpu, cuda, or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise SetupError(f"trainer.device='{name}': expected auto, cpu, cuda, or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SetupError(f"trainer.device={name}, but torch sees no GPU: use trainer.device=auto, or run `make doctor`")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SetupError(f"trainer.device={name}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    if device.index is not None and find_processes()[0].world > 1:
        raise SetupError(f"trainer.device={name} names one device for several processes: use trainer.device=cuda")
    return device


def make_attention(values: dict) -> partial:
    """Geometry -> the chosen mechanism with its knobs."""
    knobs = {k: v for k, v in values["attention"].items() if k != "name"}
    return partial(attention.build, values["attention"]["name"], **knobs)


def build(values: dict, processes: Processes | None = None, say=print) -> Parts:
    """Data first, so that a missing file is known before a model is built."""
    processes, task = processes or Processes(), domain(values)
    trainer = TrainerConfig(**values["trainer"])
    device = pick_device(trainer.device)
    if device.type == "cpu":
        keep_freed_memory()
    corpus = _load_data(task, values, processes, say)
    set_matmul_precision(trainer.precision)
    if trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first call
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(values["seed"])
    model = task.build_model(values, make_attention(values), corpus).to(device)
    built = task.build_task(values, corpus, model, device, processes)
    if trainer.compile == "always" or (trainer.compile == "auto" and device.type == "cuda"):
        # auto promises a run: a layer that torch.compile cannot handle runs as it is
        torch._dynamo.config.suppress_errors = trainer.compile == "auto"
        model.compile_blocks()
    return Parts(values, corpus, model, built, device, trainer.in_steps(built.steps_per_epoch), processes)


def _load_data(task: ModuleType, values: dict, processes: Processes, say):
    """The first process prepares what is missing; then the others find it."""
    loaded = []
    processes.on_first(lambda: loaded.append(task.load_data(values, say)))
    return loaded[0] if loaded else task.load_data(values, lambda line: None)


def open_run(
    run_dir: Path,
    device: str = "auto",
    *,
    data_root: str | None = None,
    limit: int | None = None,
    last: bool = False,
    averaged: bool = False,
) -> tuple[Parts, int]:
    """A run with the weights of its best checkpoint (else its newest), and that checkpoint's step.

    `limit` bounds its evaluations (tokens or images), `last` takes the newest checkpoint, `averaged` the EMA's weights.
    """
    values = checked_values(from_yaml(run_dir / "config.yaml"))
    values["trainer"]["device"] = device
    values["evaluation"][domain(values).LIMIT] = limit
    if data_root:
        values["data"]["root"] = data_root
    checkpoints = Checkpoints(run_dir / "checkpoints")
    found = (None if last else checkpoints.best()) or checkpoints.latest()
    if found is None:
        raise SetupError(f"{run_dir} has no checkpoint yet: train it first (its command stands in meta.json)")
    step, state = found
    parts = build(values)
    parts.model.load_state_dict(averaged_weights(state, run_dir) if averaged else state["model"])
    parts.model.eval()
    return parts, step


def averaged_weights(state: dict, run_dir: Path) -> dict:
    """The model inside torch's AveragedModel."""
    if state["ema"] is None:
        raise SetupError(f"{run_dir} was trained without averaged weights (trainer.ema_decay=null)")
    prefix = "module."
    return {key.removeprefix(prefix): value for key, value in state["ema"].items() if key.startswith(prefix)}

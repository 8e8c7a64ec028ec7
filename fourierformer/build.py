"""Plain config values -> the objects of a run: data, model, task, device. Shared by training and by the scripts."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.config import EvaluationConfig, RunConfig, Schema, TrackerConfig, annotations, checked, from_yaml
from fourierformer.data.text import Corpus, TextData, load_corpus
from fourierformer.errors import SetupError
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.tasks.language import LanguageTask
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import TrainerConfig
from fourierformer.training.optim import OptimConfig
from fourierformer.training.precision import set_matmul_precision
from fourierformer.training.schedule import ScheduleConfig


@dataclass
class Parts:
    """Everything a run is made of, before optimizer and checkpoints."""

    values: dict
    corpus: Corpus
    model: WordLM
    task: LanguageTask
    device: torch.device
    trainer: TrainerConfig


def schema(attention_name: str) -> Schema:
    """Which keys a config may have, from the signatures of what they configure."""
    knobs = {"name": str, **annotations(attention.knobs(attention_name))}
    owners = {
        "": RunConfig,
        "data": TextData,
        "evaluation": EvaluationConfig,
        "model": LMConfig,
        "optim": OptimConfig,
        "schedule": ScheduleConfig,
        "tracker": TrackerConfig,
        "trainer": TrainerConfig,
    }
    return {section: annotations(owner) for section, owner in owners.items()} | {"attention": knobs}


def checked_values(config) -> dict:
    """A composed or stored config as plain values, held against the schema."""
    name = (config.get("attention") or {}).get("name")
    if name is None:
        raise SetupError("no attention chosen: attention=fourier, or another of " + ", ".join(attention.available()))
    values = checked(config, schema(name))
    _check_ranges(values)
    return values


def _check_ranges(values: dict) -> None:
    """The right type is not yet a possible value; what each part refuses, it refuses here, before data and model."""
    RunConfig(**{key: values[key] for key in annotations(RunConfig)})
    EvaluationConfig(**values["evaluation"])
    OptimConfig(**values["optim"])
    ScheduleConfig(**values["schedule"])
    TextData(**values["data"])
    micro, batch = TrainerConfig(**values["trainer"]).micro_batch_size, values["global_batch_size"]
    if micro is not None and micro > batch:
        raise SetupError(f"trainer.micro_batch_size={micro} is a part of global_batch_size={batch}: at most {batch}")
    _one_attention(values)


def _one_attention(values: dict) -> attention.Attention:
    """A layer without memory, to ask what it refuses."""
    model = LMConfig(**values["model"])
    with torch.device("meta"):
        return _make_attention(values)(Geometry(dim=model.dim, heads=model.heads, length=model.length, causal=True))


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
    return device


def _make_attention(values: dict) -> partial:
    knobs = {k: v for k, v in values["attention"].items() if k != "name"}
    return partial(attention.build, values["attention"]["name"], **knobs)


def build_model(values: dict, vocab_size: int) -> WordLM:
    config, cutoffs = LMConfig(**values["model"]), values["data"]["cutoffs"] or []
    return WordLM(config, vocab_size, cutoffs, _make_attention(values), seed=values["seed"])


def build(values: dict, say=print) -> Parts:
    """Data first, so that a missing file is known before a model is built."""
    trainer = TrainerConfig(**values["trainer"])
    device = pick_device(trainer.device)
    corpus = load_corpus(TextData(**values["data"]), progress=say)
    set_matmul_precision(trainer.precision)
    if trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first call
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(values["seed"])
    model = build_model(values, corpus.vocab_size).to(device)
    task = LanguageTask(
        corpus,
        model,
        global_batch_size=values["global_batch_size"],
        micro_batch_size=trainer.micro_batch_size,
        device=device,
        tokens_per_forward=values["evaluation"]["tokens_per_forward"],
        max_tokens=values["evaluation"]["max_tokens"],
    )
    if trainer.compile == "always" or (trainer.compile == "auto" and device.type == "cuda"):
        # auto promises a run: a layer that torch.compile cannot handle runs as it is
        torch._dynamo.config.suppress_errors = trainer.compile == "auto"
        model.compile_blocks()
    return Parts(values, corpus, model, task, device, trainer)


def open_run(
    run_dir: Path, device: str = "auto", *, data_root: str | None = None, max_tokens: int | None = None
) -> tuple[Parts, int]:
    """A run with the weights of its best checkpoint (else its newest), and that checkpoint's step."""
    values = checked_values(from_yaml(run_dir / "config.yaml"))
    values["trainer"]["device"] = device
    values["evaluation"]["max_tokens"] = max_tokens
    if data_root:
        values["data"]["root"] = data_root
    checkpoints = Checkpoints(run_dir / "checkpoints")
    found = checkpoints.best() or checkpoints.latest()
    if found is None:
        raise SetupError(f"{run_dir} has no checkpoint yet: train it first (its command stands in meta.json)")
    step, state = found
    parts = build(values)
    parts.model.load_state_dict(state["model"])
    parts.model.eval()
    return parts, step

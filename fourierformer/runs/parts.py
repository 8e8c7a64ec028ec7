"""Build the objects of a run from its RunSpec: data, model, objective, device. For training and for the scripts."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from fourierformer.attention import Attention
from fourierformer.attention.base import layers_of
from fourierformer.config import RunSpec, differences
from fourierformer.errors import SetupError
from fourierformer.files import read_json
from fourierformer.printing import echo
from fourierformer.processes import Processes, find_processes
from fourierformer.runs.cpu import keep_freed_memory
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.spec import attention_of, meta_layers, stored_hash, stored_spec, task_of, with_changes
from fourierformer.runs.state import check_same_data
from fourierformer.tasks import AnyCorpus, Compilable, Objective, Task
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerInSteps
from fourierformer.training.precision import set_matmul_precision

TRAINED_ON = (
    "Is data.root= (--data-root) the data that it was trained on? If so, restore the checkpoint from a copy, or start "
    "again with fresh=true."
)
# keys of a config on which the meaning of weights depends: all of model and attention without names, lengths, dropout,
# implementations, and what only chooses first values or rates; clusters of the output
MEANING = re.compile(
    r"model\.(?!name:|length:|dropout|drop_path|mask_rate)|data\.cutoffs:|(decoder|cross)_attention:"
    r"|attention\.(?!backend:|form:|radius:|radius_lr_multiplier:)"
)


@dataclass
class RunObjects:
    """The objects of a run, without optimizer and checkpoints."""

    spec: RunSpec
    task: Task
    corpus: AnyCorpus
    model: nn.Module
    objective: Objective
    device: torch.device
    trainer: TrainerInSteps
    processes: Processes

    @property
    def attention(self) -> Attention:
        """The first of the attention layers, which have the same geometry but for their number."""
        return layers_of(self.model)[0]

    @cached_property
    def data_fingerprint(self) -> str | None:
        return self.task.fingerprint(self.spec, self.corpus)

    @property
    def backend(self) -> str:
        """The implementation of the attention, in a model of several mechanisms of each that is not plain torch."""
        names = {layer.backend_name(self.device) for layer in layers_of(self.model)}
        return ", ".join(sorted(names - {"torch"})) or "torch"


def check_device(spec: RunSpec) -> None:
    """SetupError unless this machine has the device, and an implementation of the attention for it."""
    device = pick_device(spec.trainer.device)
    try:
        for layer in meta_layers(spec):
            layer.backend_name(device)
    except ValueError as error:
        raise SetupError(f"attention={spec.attention.name} on {device}: {error}") from None


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
        raise SetupError(f"trainer.device={name}, but torch sees no GPU: use auto, or run `make doctor`")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SetupError(f"trainer.device={name}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    if device.index is not None and find_processes()[0].world > 1:
        raise SetupError(f"trainer.device={name} names one device for several processes: use trainer.device=cuda")
    return device


def config_notes(spec: RunSpec, steps_per_epoch: int) -> list[str]:
    """Notes of the sections; where the warm-up is as long as the training, and where the rate rises after it."""
    schedule, peak = spec.schedule, spec.optim.lr
    notes = [note for section in vars(spec).values() for note in getattr(section, "notes", ())]
    warmup, steps = schedule.warmup(steps_per_epoch), spec.trainer.in_steps(steps_per_epoch).steps
    if warmup >= steps and not spec.is_debug:
        shorter = f"schedule.warmup_steps={max(1, steps // 10)}"
        shorter += " schedule.warmup_epochs=null" if schedule.warmup_epochs is not None else ""
        notes.append(f"training ends during the warm-up (step {steps:,} of {warmup:,}): {shorter}")
    if schedule.name == "cosine" and schedule.min_lr > peak:
        lower = f"schedule.min_lr={peak / 100:g}"
        notes.append(f"the rate rises from optim.lr={peak:g} to schedule.min_lr={schedule.min_lr:g}: {lower}")
    return notes


def build_parts(
    spec: RunSpec, processes: Processes | None = None, say=echo, corpus: AnyCorpus | None = None
) -> RunObjects:
    """Build the objects of a run, its data (if not given) before the model: a missing file is an error at once."""
    processes, task, trainer = processes or Processes(), task_of(spec), spec.trainer
    device = pick_device(trainer.device)
    if device.type == "cpu":
        keep_freed_memory()
    corpus = corpus or _load_data(task, spec, processes, say)
    set_matmul_precision(trainer.precision)
    if trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first call
    if trainer.deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler: seconds
        torch.use_deterministic_algorithms(trainer.deterministic)
    torch.manual_seed(spec.seed)
    model = task.build_model(spec, attention_of(spec), corpus).to(device)
    objective = task.objective(spec, corpus, model, device, processes)
    if trainer.compile == "always" or (trainer.compile == "auto" and device.type == "cuda"):
        torch.compiler.reset()  # in a sweep: variants of earlier runs count, and after eight it compiles no more
        # with auto, a layer that torch.compile cannot handle runs without it
        torch._dynamo.config.suppress_errors = trainer.compile == "auto"
        model.compile_blocks() if isinstance(model, Compilable) else model.compile()
    in_steps = trainer.in_steps(objective.steps_per_epoch)
    return RunObjects(spec, task, corpus, model, objective, device, in_steps, processes)


def _load_data(task: Task, spec: RunSpec, processes: Processes, say) -> AnyCorpus:
    """Load the data, first in process 0, which prepares it if needed, then in the others."""
    loaded: list[AnyCorpus] = []
    processes.on_first(lambda: loaded.append(task.load_data(spec, say)))
    return loaded[0] if loaded else task.load_data(spec, lambda line: None)


def open_run(
    run_dir: Path,
    device: str = "auto",
    *,
    data_root: str | None = None,
    limit: int | None = None,
    word_swap: float | None = None,
    context: int | None = None,
    last: bool = False,
    averaged: bool = False,
) -> tuple[RunObjects, int]:
    """A run with the weights of its best checkpoint (else its newest), and that checkpoint's step. `limit` bounds its
    evaluations (tokens or images), `word_swap` is the share of words swapped in them, `context` the length of their
    windows in place of that of training, `last` takes the newest checkpoint, `averaged` the EMA's weights."""
    spec = stored_spec(run_dir)
    evaluation: dict = {task_of(spec).limit_key: limit}
    if word_swap is not None:
        if not hasattr(spec.evaluation, "word_swap"):
            raise SetupError(f"{run_dir}: its task, {spec.task}, has no words to swap: no --word-swap")
        evaluation["word_swap"] = word_swap
    if context is not None:
        if not hasattr(spec.model, "length"):
            raise SetupError(f"{run_dir}: its task, {spec.task}, has no windows of text: no --context")
        spec = with_changes(spec, model={"length": context})
    spec = with_changes(spec, trainer={"device": device}, evaluation=evaluation)
    if data_root:
        if getattr(spec.data, "source", "builtin") == "builtin":
            raise SetupError(f"{run_dir}: its data '{spec.data.name}' is made when it is needed: no --data-root")
        spec = with_changes(spec, data={"root": data_root})
    step, state = stored_checkpoint(run_dir, stored_hash(run_dir), last=last)
    parts = build_parts(spec)
    check_same_data(spec, run_dir, state.get("data_fingerprint"), parts.data_fingerprint)
    way_out = f"It has numbers for each position of training: leave out --context {context}" if context else TRAINED_ON
    with refuse_other_shapes(run_dir, way_out):
        parts.model.load_state_dict(weights_of(state, run_dir, averaged))
    parts.model.eval()
    return parts, step


def chosen_evaluation(parts: RunObjects, run: Path, split: str | None, protocol: str | None) -> tuple[str, str]:
    """Split and protocol of a script's --split and --protocol; by default those that a paper would quote."""
    known = parts.objective.protocols
    if protocol and not known:
        raise SetupError(f"{run} can be evaluated in one way only: leave out --protocol")
    if protocol and protocol not in known:
        raise SetupError(f"{run} is measured with --protocol {' or '.join(known)}, not {protocol}")
    return chosen_split(parts, run, split), protocol or (known[-1] if known else "")


def chosen_split(parts: RunObjects, run: Path, split: str | None) -> str:
    """The split of a script's --split; by default test, or valid where there is no test."""
    split = split or ("test" if "test" in parts.corpus.splits else "valid")
    if split not in parts.corpus.splits:
        raise SetupError(f"{run} has no {split} split: --split is one of {', '.join(parts.corpus.splits)}")
    return split


def stored_checkpoint(run: Path, config_hash: str, *, last: bool = False) -> tuple[int, dict]:
    """A run's best checkpoint with its step, or its newest where there is no best one or with `last`."""
    checkpoints = Checkpoints(run / "checkpoints", config_hash=config_hash)
    checkpoint = (None if last else checkpoints.best()) or checkpoints.latest()
    if checkpoint is None:
        raise SetupError(f"{run} has no checkpoint yet: train it first (its command is in meta.json)")
    if checkpoints.best_path() is None and (read_json(RunDirectory(run).status) or {}).get("state") == "diverged":
        raise SetupError(f"{run} diverged before an evaluation with finite numbers: train it at a lower optim.lr")
    return checkpoint


def start_from(parts: RunObjects, run: Path) -> dict:
    """Give the model the weights of a run's best checkpoint. Returns the hash of that run and the step. SetupError
    unless model, attention and vocabulary (or classes) are those of that run."""
    origin = stored_spec(run)
    step, state = stored_checkpoint(run, stored_hash(run))
    if others := [text for text in differences(origin.values, parts.spec.values) if MEANING.match(text)]:
        raise SetupError(
            f"init_from={run}: its weights mean something else in this model ({'; '.join(others)}): choose the model= "
            "and the attention= of that run, or leave out init_from="
        )
    facts, theirs = parts.task.data_facts(parts.corpus) or {}, read_json(RunDirectory(run).data_facts) or {}
    if any(facts[key] != theirs[key] for key in (facts.keys() & theirs.keys()) - {"source"}):
        raise SetupError(
            f"init_from={run}: it was trained with another vocabulary or other classes, so that the same numbers would "
            f"mean other words. Train on its data, data={origin.data.name}, or without init_from="
        )
    try:
        parts.model.load_state_dict(state["model"])
    except (KeyError, RuntimeError) as error:
        way_out = "choose the model= and the attention= of that run, or leave out init_from="
        raise SetupError(f"init_from={run}: its weights do not fit this model ({misfit(error)}): {way_out}") from None
    return {"init_from": {"config_hash": stored_hash(run), "step": step}}


def weights_of(state: dict, run: Path, averaged: bool = False) -> dict:
    """The weights of the model in a checkpoint, or with `averaged` their moving average."""
    if not averaged:
        return state["model"]
    if state.get("ema") is None:
        raise SetupError(f"{run} was trained without averaged weights (trainer.ema_decay=null)")
    prefix = "module."  # of torch's AveragedModel
    return {key.removeprefix(prefix): value for key, value in state["ema"].items() if key.startswith(prefix)}


@contextlib.contextmanager
def refuse_other_shapes(run: Path, way_out: str = TRAINED_ON) -> Iterator[None]:
    """A context for loading a checkpoint: SetupError where it does not fit the model, after training on a text with
    another vocabulary (for a run without a fingerprint), or for a checkpoint of another run."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {misfit(error)[:200]}"
        raise SetupError(f"{run}: the weights of its checkpoint do not fit the model ({reason}). {way_out}") from None


def misfit(error: Exception) -> str:
    """The last line of load_state_dict's error, about a weight; its first line names the model's class."""
    return " ".join(str(error).split("\n")[-1].split())

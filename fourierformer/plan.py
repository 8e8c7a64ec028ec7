"""dry_run=true: what a command would do, before it costs anything."""

import torch

from fourierformer import config as configs
from fourierformer.build import build_model, pick_device
from fourierformer.data.text import TextData, check_available, load_corpus
from fourierformer.errors import SetupError
from fourierformer.models.lm import LMConfig
from fourierformer.training.loop import TrainerConfig


def print_plan(values: dict) -> None:
    """Config, size, steps, memory, data, directory. Missing data is an error, but only after the rest was said."""
    trainer, model = TrainerConfig(**values["trainer"]), LMConfig(**values["model"])
    data, problem, corpus = TextData(**values["data"]), None, None
    try:
        check_available(data)
        corpus = load_corpus(data)
    except SetupError as error:
        problem = error
    vocab_size = corpus.vocab_size if corpus else (data.expect or {}).get("vocabulary", 0)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_model(values, max(vocab_size, 1)).parameters())
    tokens = values["global_batch_size"] * model.length
    micro = (trainer.micro_batch_size or values["global_batch_size"]) * model.length
    print(configs.to_yaml(values))
    print(f"device       {pick_device(trainer.device)}, {trainer.precision}")
    print(f"parameters   {parameters:,}" + ("" if vocab_size else " (without a vocabulary)"))
    print(f"steps        {trainer.steps:,} of {tokens:,} tokens = {trainer.steps * tokens:,} tokens", end="")
    if corpus:
        epoch = len(corpus.splits["train"])
        print(f" = {trainer.steps * tokens / epoch:.1f} epochs of {epoch:,}", end="")
    head = min([vocab_size, *(data.cutoffs or [])[:1]])
    print(f"\nmemory       about {_memory(parameters, model, micro, head) / 2**30:.1f} GiB to train")
    print(f"data         {problem or f'{data.name}: found, vocabulary {vocab_size:,}'}")
    for note in corpus.notes if corpus else []:
        print(f"             {note}")
    directory = configs.run_directory(values)
    print(f"directory    {directory} ({'exists: resumes or is done' if directory.exists() else 'new'})")
    if problem:
        raise SetupError("the data is missing (see above): nothing would run")


def _memory(parameters: int, model: LMConfig, tokens: int, head: int) -> int:
    """Bytes, float32: weights, gradients and two Adam moments (16 per parameter); per token and layer about 10
    activations of width dim and 3 of width inner; per token the head's logits, their softmax and its gradient."""
    activations = tokens * model.layers * (10 * model.dim + 3 * model.inner) * 4
    return 16 * parameters + activations + tokens * head * 3 * 4

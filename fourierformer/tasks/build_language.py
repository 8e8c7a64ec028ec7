"""What a language model run is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from fourierformer.attention import Attention, Geometry
from fourierformer.data import sequences, streams
from fourierformer.data.text.corpus import Corpus, TextData, load_corpus
from fourierformer.data.text.corpus import check_available as check_text
from fourierformer.errors import SetupError, check_range
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.tasks.language import METRICS, LanguageTask
from fourierformer.training.processes import Processes

SCRIPT = "train_lm.py"
OTHER = "python train_vit.py trains image models"
FOREIGN_KEYS = {"model": "image_size", "data": "mean"}  # only a vision group has these
LIMIT = "max_tokens"
UNIT = "tokens"


@dataclass(frozen=True, kw_only=True)
class LanguageEvaluation:
    """How the finished run's best checkpoint is measured."""

    splits: list[Literal["train", "valid", "test"]]
    protocols: list[Literal["segment", "overlapping", "sliding"]]
    tokens_per_forward: int
    max_tokens: int | None

    def __post_init__(self):
        check_range("evaluation.tokens_per_forward", self.tokens_per_forward, 1)
        check_range("evaluation.max_tokens", self.max_tokens, 100)  # 10 streams of a few tokens each


SECTIONS = {"data": TextData, "evaluation": LanguageEvaluation, "model": LMConfig}


def primary(values: dict) -> str:
    return METRICS[values["data"]["unit"]]


def geometry(values: dict) -> Geometry:
    return LMConfig(**values["model"]).geometry()


def check_available(values: dict) -> None:
    check_text(TextData(**values["data"]))


def load_data(values: dict, say) -> Corpus:
    return load_corpus(TextData(**values["data"]), progress=say)


def steps_per_epoch(values: dict, corpus: Corpus | None) -> int | None:
    """Without a corpus (in a plan), of the published number of tokens, where there is one."""
    tokens = len(corpus.splits["train"]) if corpus else (values["data"]["expect"] or {}).get("train")
    order = sequences if values["data"]["unit"] == "pixel" else streams
    return order.steps_per_epoch(tokens, values["global_batch_size"], values["model"]["length"]) if tokens else None


def build_model(values: dict, attention: Callable[[Geometry], Attention], corpus: Corpus | None) -> WordLM:
    """Without a corpus (in a plan), for the published vocabulary."""
    if values["data"]["unit"] == "pixel":
        _check_images(values, corpus)
    planned = 256 if values["data"]["unit"] == "byte" else 1
    vocabulary = corpus.vocab_size if corpus else (values["data"]["expect"] or {}).get("vocabulary", planned)
    cutoffs = values["data"]["cutoffs"] or []
    return WordLM(LMConfig(**values["model"]), vocabulary, cutoffs, attention, seed=values["seed"])


def _check_images(values: dict, corpus: Corpus | None) -> None:
    """What images ask of the model and of the evaluation, said before any step."""
    name, length = values["data"]["name"], values["model"]["length"]
    sequence = corpus.sequence if corpus else (values["data"]["expect"] or {}).get("sequence", length)
    if length != sequence:
        raise SetupError(
            f"model.length={length}: an image of '{name}' is a sequence of {sequence:,} tokens: model.length={sequence}"
        )
    other = next((protocol for protocol in values["evaluation"]["protocols"] if protocol != "segment"), None)
    if other:
        raise SetupError(
            f"evaluation.protocols has {other}, but no window slides over the images of '{name}', for each is scored "
            "whole: evaluation.protocols=[segment]"
        )


def build_task(values: dict, corpus: Corpus, model: WordLM, device: torch.device, processes: Processes) -> LanguageTask:
    return LanguageTask(
        corpus,
        model,
        global_batch_size=values["global_batch_size"],
        micro_batch_size=values["trainer"]["micro_batch_size"],
        device=device,
        tokens_per_forward=values["evaluation"]["tokens_per_forward"],
        max_tokens=values["evaluation"]["max_tokens"],
        processes=processes,
        seed=values["seed"],
    )


def plan_lines(values: dict, corpus: Corpus | None) -> dict[str, str]:
    """What dry_run=true says about the data."""
    if corpus is None:
        return {}
    epoch = len(corpus.splits["train"])
    return {"data": f"{corpus.name}: found, {epoch:,} training tokens, vocabulary {corpus.vocab_size:,}"}


def samples_per_step(values: dict) -> int:
    return values["global_batch_size"] * values["model"]["length"]


def activation_bytes(values: dict, micro: int) -> int:
    """float32; per token and layer about 10 activations of width dim and 3 of width inner; per token the logits of the
    (adaptive) softmax's head, their softmax and its gradient. (A CPU needs less: it has the logits of a few rows.)"""
    model, data = LMConfig(**values["model"]), values["data"]
    vocabulary = (data["expect"] or {}).get("vocabulary") or data["vocabulary_size"] or 256
    head = min([vocabulary, *(data["cutoffs"] or [])[:1]])
    tokens = micro * model.length
    return 4 * tokens * (model.layers * (10 * model.dim + 3 * model.inner) + 3 * head)

"""The task of answering texts with texts: an encoder-decoder on pairs, its facts, and the parts of its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from fourierformer.config import RunSpec
from fourierformer.data.text.pairs import VOCABULARY, PairsCorpus, PairsData, load_pairs
from fourierformer.errors import SetupError, check_range
from fourierformer.models.config import Part, Seq2SeqConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Metric, SequenceTask, refuse_word_swap

if TYPE_CHECKING:
    from fourierformer.attention import Attention, Geometry

    Build = Callable[[Geometry], Attention]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqEvaluation:
    """How the best checkpoint is measured when training is done."""

    splits: list[Literal["train", "valid", "test"]]
    protocols: list[str]
    tokens_per_forward: int  # of sources and answers together
    max_tokens: int | None  # likewise: only the first pairs with so many tokens, at least one
    word_swap: float = 0.0  # not possible here

    def __post_init__(self):
        check_range("evaluation.tokens_per_forward", self.tokens_per_forward, 1)
        check_range("evaluation.max_tokens", self.max_tokens, 1)
        refuse_word_swap(self.word_swap, "answers are read letter by letter")
        if set(self.protocols) - {"greedy"}:
            raise SetupError(
                f"evaluation.protocols=[{','.join(self.protocols)}], but answers are decoded greedily: "
                "evaluation.protocols=[greedy]"
            )


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSpec(RunSpec):
    """`attention` is the encoder's; by default it is the decoder's and the one between them too."""

    model: Seq2SeqConfig
    data: PairsData
    evaluation: Seq2SeqEvaluation
    decoder_attention: str | None  # another mechanism, with its own defaults; None = the encoder's
    cross_attention: str | None

    @property
    def builders(self) -> dict[Part, Build]:
        """A function for each part of the model that builds its attention for a geometry."""
        from fourierformer.attention import build

        encoder = partial(build, self.attention.name, **self.attention.knobs)
        named = {"decoder": self.decoder_attention, "cross": self.cross_attention}
        others = {part: encoder if name is None else partial(build, name) for part, name in named.items()}
        return {"encoder": encoder, "decoder": others["decoder"], "cross": others["cross"]}


class Seq2Seq(SequenceTask[Seq2SeqSpec]):
    name = "seq2seq"
    experiment, debug = "builtin_seq2seq", "smoke_seq2seq"
    spec = Seq2SeqSpec
    unit, short_unit = "pairs", "pairs"
    metrics = (
        Metric("exact", "answers that are exactly right", "exact", 2, unit="%", higher_is_better=True, skipped=0.25),
        Metric("chrf", "chrF of the answers", "chrF", 2, higher_is_better=True, skipped=0.25),
    )
    secondary_metrics = ("chrf",)
    protocols = preferred_protocols = ("greedy",)
    protocol_notes: ClassVar = {"greedy": "each answer goes on with its likeliest next character"}
    default_columns = (("valid", "greedy"), ("test", "greedy"))
    scored = ("pairs",)
    pipeline = "text2text-generation"

    def primary(self, spec: Seq2SeqSpec) -> str:
        return "exact"

    def geometry(self, spec: Seq2SeqSpec) -> Geometry:
        return spec.model.geometry("encoder")

    def check_attention(self, spec: Seq2SeqSpec) -> None:
        """SetupError where a mechanism cannot stand in its place, with the key to choose another and those that
        can."""
        for part in PLACES:
            _check_place(spec, part)

    def check_available(self, spec: Seq2SeqSpec) -> None:
        """The pairs are made in a second or two."""

    def load_data(self, spec: Seq2SeqSpec, say) -> PairsCorpus:
        return load_pairs(spec.data)

    def build_model(self, spec: Seq2SeqSpec, attention, corpus: PairsCorpus | None):
        from fourierformer.models.seq2seq import EncoderDecoder

        return EncoderDecoder(spec.model, VOCABULARY, spec.builders, seed=spec.seed)

    def data_facts(self, corpus: PairsCorpus) -> dict:
        return {}  # its characters are those of data/text/pairs.py

    def corpus_of(self, spec: Seq2SeqSpec, facts: dict) -> PairsCorpus:
        return PairsCorpus(spec.data.name, {})

    def trained(self, spec: Seq2SeqSpec, model, corpus: PairsCorpus, step: int):
        from fourierformer.tasks.trained import TrainedEncoderDecoder

        return TrainedEncoderDecoder(model, spec, corpus, step)

    def objective(self, spec: Seq2SeqSpec, corpus: PairsCorpus, model, device, processes):
        from fourierformer.tasks.seq2seq_objective import Seq2SeqObjective

        return Seq2SeqObjective(corpus, model, **self.options(spec, device, processes))

    def steps_per_epoch(self, spec: Seq2SeqSpec, corpus: PairsCorpus | None) -> int:
        from fourierformer.data.order import EpochOrder

        return EpochOrder(spec.data.train, spec.global_batch_size, seed=spec.seed, unit="pairs").steps_per_epoch

    def samples_per_step(self, spec: Seq2SeqSpec) -> int:
        return spec.global_batch_size

    def activation_bytes(self, spec: Seq2SeqSpec, micro_batch: int) -> int:
        """In float32: about 10 activations of width dim and 3 of width inner for a token in a layer of the encoder; in
        one of the decoder, which has a second attention, 17 of width dim."""
        model = spec.model
        encoder = model.source_length * (10 * model.dim + 3 * model.inner)
        decoder = model.target_length * (17 * model.dim + 3 * model.inner)
        return 4 * micro_batch * model.layers * (encoder + decoder)

    def data_line(self, corpus: PairsCorpus) -> str:
        sizes = ", ".join(f"{len(pairs):,} {split}" for split, pairs in corpus.splits.items())
        return f"{corpus.name}: made here, pairs: {sizes}; {VOCABULARY} characters"

    def scored_text(self, numbers: dict) -> str:
        return f"{numbers['pairs']} pairs scored"


# -- which mechanism can stand where ----------------------------------------------------------------------------------

KEYS: dict[Part, str] = {"encoder": "attention", "decoder": "decoder_attention", "cross": "cross_attention"}
PLACES: dict[Part, str] = {
    "encoder": "the encoder reads padded sources in both directions",
    "decoder": "the decoder writes from left to right",
    "cross": "the decoder looks back at padded sources",
}


def _check_place(spec: Seq2SeqSpec, part: Part) -> None:
    import torch

    from fourierformer.attention import available, mechanism

    named = {"decoder": spec.decoder_attention, "cross": spec.cross_attention}
    name = named.get(part) or spec.attention.name
    reason = _refusal(mechanism(name), part)
    if reason is None:
        with torch.device("meta"):
            layers = [spec.builders[part](spec.model.geometry(part, i)) for i in range(spec.model.layers)]
            reasons = [_refusal(layer, part) for layer in layers]  # knobs, or the number of the layer, may decide
        reason = next(filter(None, reasons), None)
    if reason:
        able = available(causal=part == "decoder", grid=False, cross=part == "cross", padding=part != "decoder")
        raise SetupError(
            f"{KEYS[part]}={name}: {PLACES[part]}, and it cannot: {reason}. {KEYS[part]}= can be: {', '.join(able)}"
        )


def _refusal(layer: Attention | type[Attention], part: Part) -> str | None:
    """Why a mechanism cannot stand in this part; None if it can."""
    if layer.needs_grid:
        return "it needs the rows and columns of an image"
    asked = {"encoder": ("full_ok", "padding_ok"), "decoder": ("causal_ok",), "cross": ("cross_ok", "padding_ok")}
    verdicts = [getattr(layer, name) for name in asked[part]]
    return next((verdict for verdict in verdicts if verdict is not True), None)


register(Seq2Seq())

"""The task of language modelling, of text or of images as sequences: its facts, and the parts of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fourierformer.config import RunSpec
from fourierformer.data.text.spec import METRIC_OF_UNIT, SWAPPED, TextData
from fourierformer.errors import SetupError, check_range
from fourierformer.models.config import LMConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Column, Metric, SequenceTask, refuse_word_swap

if TYPE_CHECKING:
    from fourierformer.data.text.corpus import Corpus

EMBEDDED = "built-in corpus: not comparable with WikiText numbers"


@dataclass(frozen=True, kw_only=True)
class LanguageEvaluation:
    """How the best checkpoint is measured when training is done."""

    splits: list[Literal["train", "valid", "test"]]
    protocols: list[Literal["segment", "overlapping", "sliding"]]
    tokens_per_forward: int
    max_tokens: int | None
    word_swap: float = 0.0  # the share of swapped words in further measurements; 0 = none of them

    def __post_init__(self):
        check_range("evaluation.tokens_per_forward", self.tokens_per_forward, 1)
        check_range("evaluation.max_tokens", self.max_tokens, 100)  # 10 streams of a few tokens each
        if not 0 <= self.word_swap <= 1:
            raise SetupError(f"evaluation.word_swap={self.word_swap}: a share of the words, from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(RunSpec):
    model: LMConfig
    data: TextData
    evaluation: LanguageEvaluation

    def __post_init__(self):
        super().__post_init__()
        if self.data.unit != "word":
            refuse_word_swap(self.evaluation.word_swap, f"data={self.data.name} is read as {self.data.unit}s")


class Language(SequenceTask[LanguageSpec]):
    name = "language"
    experiment, debug = "builtin", "smoke"
    embedded: ClassVar[dict[str, str]] = {
        "builtin_text": EMBEDDED,
        "builtin_bytes": EMBEDDED,
        "builtin_pixels": "built-in digits: not comparable with CIFAR-10 or ImageNet numbers",
    }
    spec: ClassVar[type[LanguageSpec]] = LanguageSpec
    unit, short_unit = "tokens", "tok"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("ppl", "perplexity", "ppl", 2, logarithmic=True),
        Metric("bpc", "bits per character", "bpc", 4),
        Metric("bpb", "bits per byte of text", "bpb", 4),
        Metric("bpd", "bits per dimension", "bpd", 4),
        Metric("ppl_unswapped", "perplexity of unswapped words", "ppl unswapped", 2, logarithmic=True),
    )
    secondary_metrics: ClassVar[tuple[str, ...]] = ("ppl_unswapped", "bpb")
    protocols: ClassVar[tuple[str, ...]] = (
        *("segment", "overlapping", "sliding"),
        *("segment_swapped", "overlapping_swapped", "sliding_swapped"),
    )
    preferred_protocols: ClassVar[tuple[str, ...]] = ("sliding", "overlapping", "segment")
    default_columns = (("valid", "segment"), ("test", "segment"))
    scored: ClassVar[tuple[str, ...]] = ("context", "stride", "tokens", "swapped")
    pipeline = "text-generation"

    def primary(self, spec: LanguageSpec) -> str:
        return METRIC_OF_UNIT[spec.data.unit]

    def geometry(self, spec: LanguageSpec):
        return spec.model.geometry()

    def check_available(self, spec: LanguageSpec) -> None:
        from fourierformer.data.text.corpus import check_available

        check_available(spec.data)

    def load_data(self, spec: LanguageSpec, say) -> Corpus:
        from fourierformer.data.text.corpus import load_corpus

        return load_corpus(spec.data, say)

    def fingerprint(self, spec: LanguageSpec, corpus: Corpus | None) -> str | None:
        from fourierformer.data.text.corpus import quick_fingerprint

        return corpus.manifest["fingerprint"] if corpus else quick_fingerprint(spec.data)

    def build_model(self, spec: LanguageSpec, attention, corpus: Corpus | None):
        from fourierformer.models.lm import WordLM

        if spec.data.unit == "pixel":
            _check_images(spec, corpus)
        return WordLM(spec.model, self.vocabulary(spec, corpus), spec.data.cutoffs or [], attention, seed=spec.seed)

    def data_facts(self, corpus: Corpus) -> dict:
        return corpus.facts()

    def corpus_of(self, spec: LanguageSpec, facts: dict) -> Corpus:
        from fourierformer.data.text.corpus import Corpus

        return Corpus.of_facts(spec.data.name, facts)

    def export_config(self, spec: LanguageSpec, model, corpus: Corpus) -> dict:
        """For transformers: integrations/hugging_face/language_model.py."""
        return {
            "model_type": "fourierformer",
            "architectures": ["FourierFormerForCausalLM"],
            "vocab_size": corpus.vocab_size,
            "dtype": "float32",
        }

    def export_files(self, spec: LanguageSpec, corpus: Corpus) -> dict[str, dict]:
        """For transformers' AutoTokenizer."""
        from fourierformer.data.text.tokenizer import tokenizer_files

        return {} if spec.data.unit == "pixel" else tokenizer_files(corpus, spec.model.length)

    def trained(self, spec: LanguageSpec, model, corpus: Corpus, step: int):
        from fourierformer.tasks.trained import TrainedLanguageModel

        return TrainedLanguageModel(model, spec, corpus, step)

    def vocabulary(self, spec: LanguageSpec, corpus: Corpus | None) -> int:
        """How many tokens there are; without a corpus, as many as are published, or kept of them."""
        if corpus:
            return corpus.vocab_size
        kept = 256 if spec.data.unit == "byte" else spec.data.vocabulary_size
        published = (spec.data.expect or {}).get("vocabulary", kept or 1)
        return min(published, kept or published)

    def objective_class(self):
        """What is trained and measured; a task of other text may have its own."""
        from fourierformer.tasks.language_objective import LanguageObjective

        return LanguageObjective

    def objective(self, spec: LanguageSpec, corpus: Corpus, model, device, processes):
        options = self.options(spec, device, processes)
        return self.objective_class()(corpus, model, **options, word_swap=spec.evaluation.word_swap)

    def steps_per_epoch(self, spec: LanguageSpec, corpus: Corpus | None) -> int | None:
        from fourierformer.data.text import sequences, streams

        tokens = len(corpus.splits["train"]) if corpus else (spec.data.expect or {}).get("train")
        order = sequences if spec.data.unit == "pixel" else streams
        return order.steps_per_epoch(tokens, spec.global_batch_size, spec.model.length) if tokens else None

    def samples_per_step(self, spec: LanguageSpec) -> int:
        return spec.global_batch_size * spec.model.length

    def activation_bytes(self, spec: LanguageSpec, micro_batch: int) -> int:
        """In float32: per token and layer about 10 activations of width dim and 3 of width inner; per token the logits
        of the (adaptive) softmax's head, their softmax and its gradient. (Less on a CPU, which has the logits of a few
        rows at a time.)"""
        model = spec.model
        head = min([self.vocabulary(spec, None), *(spec.data.cutoffs or [])[:1]])
        tokens = micro_batch * model.length
        return 4 * tokens * (model.layers * (10 * model.dim + 3 * model.inner) + 3 * head)

    def data_line(self, corpus: Corpus) -> str:
        tokens = len(corpus.splits["train"])
        return f"{corpus.name}: found, {tokens:,} training tokens, vocabulary {corpus.vocab_size:,}"

    def scored_text(self, numbers: dict) -> str:
        scored = f"context {numbers['context']}, stride {numbers['stride']}, {numbers['tokens']} tokens scored"
        words = numbers.get("swapped", "")
        return f"{scored}, {words} words swapped" if words[:1].isdigit() else scored  # a table has a dash for no number

    def measured_at_end(self, spec: LanguageSpec) -> list[Column]:
        protocols = spec.evaluation.protocols
        ends = ("", SWAPPED) if spec.evaluation.word_swap else ("",)
        return [(split, name + end) for split in spec.evaluation.splits for end in ends for name in protocols]


def _check_images(spec: LanguageSpec, corpus: Corpus | None) -> None:
    """SetupError unless model and evaluation suit a data set of images."""
    name, length = spec.data.name, spec.model.length
    sequence = corpus.sequence if corpus else (spec.data.expect or {}).get("sequence", length)
    if length != sequence:
        raise SetupError(
            f"model.length={length}: an image of '{name}' is a sequence of {sequence:,} tokens: model.length={sequence}"
        )
    other = next((protocol for protocol in spec.evaluation.protocols if protocol != "segment"), None)
    if other:
        raise SetupError(
            f"evaluation.protocols has {other}, but each image of '{name}' is scored whole, without windows: "
            "evaluation.protocols=[segment]"
        )


register(Language())

"""The task of associative recall, which separates attentions in half a minute: its facts, and the parts of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fourierformer.config import RunSpec
from fourierformer.data.recall.spec import CURVE, LENGTHS, RecallData
from fourierformer.errors import SetupError
from fourierformer.models.config import RecallConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Column, Metric, Task
from fourierformer.tasks.drawn import DrawnEvaluation, check_lengths_in_steps

if TYPE_CHECKING:
    from fourierformer.data.recall.corpus import RecallCorpus


class RecallEvaluation(DrawnEvaluation):
    task, known = "recall", tuple(LENGTHS)


@dataclass(frozen=True, kw_only=True)
class RecallSpec(RunSpec):
    model: RecallConfig
    data: RecallData
    evaluation: RecallEvaluation

    def __post_init__(self):
        super().__post_init__()
        check_lengths_in_steps(self)


class Recall(Task[RecallSpec]):
    name = "recall"
    script, experiment, debug = "train_lm.py", "recall", "smoke_recall"
    spec: ClassVar[type[RecallSpec]] = RecallSpec
    unit, short_unit = "tokens", "tok"
    metrics = (
        Metric("recall", "accuracy of recall", "accuracy", 2, unit="%", higher_is_better=True, skipped=0.0),
        Metric("area", "mean accuracy over training", "area", 2, unit="%", higher_is_better=True),
        Metric("steps_to_95", "steps to 95 % accuracy", "steps to 95 %", 0),
        Metric("state", "numbers kept between tokens", "state", 0),
    )
    secondary_metrics = ("area", "steps_to_95", "state")
    protocols = (CURVE, *LENGTHS)
    preferred_protocols = (*LENGTHS, CURVE)
    protocol_notes: ClassVar = {
        CURVE: "evaluations during training; area: their mean; state: what decoding one more token needs",
        "2x": "twice as many tokens as in training, with as many pairs",
        "4x": "four times as many tokens as in training, with as many pairs",
    }
    default_columns = (("valid", CURVE), ("test", "1x"))
    scored = ("length", "pairs", "queries", "sequences")
    limit_key = "max_tokens"

    def primary(self, spec: RecallSpec) -> str:
        return "recall"

    def geometry(self, spec: RecallSpec):
        return spec.model.geometry(spec.data.length)

    def check_attention(self, spec: RecallSpec) -> None:
        from fourierformer.attention import mechanism

        longer = [protocol for protocol in spec.evaluation.protocols if LENGTHS[protocol] > 1]
        if longer and not mechanism(spec.attention.name).longer_ok:
            raise SetupError(
                f"attention={spec.attention.name} reads at most data.length={spec.data.length} tokens, and protocol "
                f"{longer[-1]} has {LENGTHS[longer[-1]]} times as many: evaluation.protocols=[1x]"
            )

    def check_available(self, spec: RecallSpec) -> None:
        """The sequences are drawn when they are needed."""

    def load_data(self, spec: RecallSpec, say) -> RecallCorpus:
        from fourierformer.data.recall.corpus import RecallCorpus

        return RecallCorpus(spec.data)

    def build_model(self, spec: RecallSpec, attention, corpus: RecallCorpus | None):
        from fourierformer.models.recall import RecallModel

        data = spec.data
        dimension = data.dimension if data.keys == "vectors" else None
        return RecallModel(spec.model, data.vocabulary, data.length, attention, key_dimension=dimension, seed=spec.seed)

    def data_facts(self, corpus: RecallCorpus) -> dict:
        return {}

    def corpus_of(self, spec: RecallSpec, facts: dict) -> RecallCorpus:
        from fourierformer.data.recall.corpus import RecallCorpus

        return RecallCorpus(spec.data)

    def objective(self, spec: RecallSpec, corpus: RecallCorpus, model, device, processes):
        from fourierformer.tasks.recall_objective import RecallObjective

        return RecallObjective(
            corpus,
            model,
            global_batch_size=spec.global_batch_size,
            micro_batch_size=spec.trainer.micro_batch_size,
            tokens_per_forward=spec.evaluation.tokens_per_forward,
            max_tokens=spec.evaluation.max_tokens,
            device=device,
            processes=processes,
            seed=spec.seed,
        )

    def steps_per_epoch(self, spec: RecallSpec, corpus: RecallCorpus | None) -> int | None:
        return None

    def samples_per_step(self, spec: RecallSpec) -> int:
        return spec.global_batch_size * spec.data.length

    def activation_bytes(self, spec: RecallSpec, micro_batch: int) -> int:
        """In float32: per token and layer about 8 activations of width dim and 3 of width inner."""
        model = spec.model
        return 4 * micro_batch * spec.data.length * model.layers * (8 * model.dim + 3 * model.inner)

    def data_line(self, corpus: RecallCorpus) -> str:
        data = corpus.data
        return f"{data.name}: drawn here, {data.pairs} pairs and {data.asked} queries in {data.length} tokens"

    def scored_text(self, numbers: dict) -> str:
        return (
            f"{numbers['pairs']} pairs and {numbers['queries']} queries in {numbers['length']} tokens, "
            f"{numbers['sequences']} sequences"
        )

    def measured_at_end(self, spec: RecallSpec) -> list[Column]:
        return [(split, protocol) for split in spec.evaluation.splits for protocol in spec.evaluation.protocols]


register(Recall())

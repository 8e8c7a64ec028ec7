"""The task of associative recall, which separates attentions in half a minute: its facts, and the parts of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fourierformer.data.recall.spec import CURVE, LENGTHS, RecallData
from fourierformer.errors import SetupError
from fourierformer.models.config import RecallConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Metric
from fourierformer.tasks.drawn import DrawnEvaluation, DrawnSpec, DrawnTask

if TYPE_CHECKING:
    from fourierformer.data.recall.corpus import RecallCorpus


class RecallEvaluation(DrawnEvaluation):
    task, known = "recall", tuple(LENGTHS)


@dataclass(frozen=True, kw_only=True)
class RecallSpec(DrawnSpec):
    model: RecallConfig
    data: RecallData
    evaluation: RecallEvaluation


class Recall(DrawnTask[RecallSpec]):
    name = "recall"
    experiment, debug = "recall", "smoke_recall"
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

    def primary(self, spec: RecallSpec) -> str:
        return "recall"

    def geometry(self, spec: RecallSpec):
        return spec.model.geometry(spec.data.length)

    def check_attention(self, spec: RecallSpec) -> None:
        import torch

        from fourierformer.attention import build

        longer = [protocol for protocol in spec.evaluation.protocols if LENGTHS[protocol] > 1]
        geometries = [spec.model.geometry(spec.data.length, i) for i in range(spec.model.layers)] if longer else []
        with torch.device("meta"):
            layers = [build(spec.attention.name, geometry, **spec.attention.knobs) for geometry in geometries]
        if not all(layer.longer_ok for layer in layers):
            raise SetupError(
                f"attention={spec.attention.name} reads at most data.length={spec.data.length} tokens, and protocol "
                f"{longer[-1]} has {LENGTHS[longer[-1]]} times as many: evaluation.protocols=[1x]"
            )

    def corpus(self, spec: RecallSpec) -> RecallCorpus:
        from fourierformer.data.recall.corpus import RecallCorpus

        return RecallCorpus(spec.data)

    def build_model(self, spec: RecallSpec, attention, corpus: RecallCorpus | None):
        from fourierformer.models.recall import RecallModel

        data = spec.data
        return RecallModel(
            *(spec.model, data.vocabulary, data.length, attention),
            same_ids=data.layout == "stream",
            key_dimension=data.dimension if data.keys == "vectors" else None,
            seed=spec.seed,
        )

    def objective(self, spec: RecallSpec, corpus: RecallCorpus, model, device, processes):
        from fourierformer.tasks.recall_objective import RecallObjective

        return RecallObjective(corpus, model, **self.options(spec, device, processes))

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


register(Recall())

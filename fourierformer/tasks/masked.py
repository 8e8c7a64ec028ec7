"""The task of masked language modelling: its differences from language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fourierformer.errors import SetupError
from fourierformer.models.config import MaskedLMConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Metric, refuse_word_swap
from fourierformer.tasks.language import Language, LanguageEvaluation, LanguageSpec

if TYPE_CHECKING:
    from fourierformer.data.text.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class MaskedEvaluation(LanguageEvaluation):
    def __post_init__(self):
        super().__post_init__()
        refuse_word_swap(self.word_swap, "words are swapped for models that predict the next word")
        if other := [name for name in self.protocols if name != "segment"]:
            raise SetupError(
                f"evaluation.protocols has {other[0]}, but masked words are predicted from both sides, in whole "
                "segments: evaluation.protocols=[segment]"
            )


@dataclass(frozen=True, kw_only=True)
class MaskedSpec(LanguageSpec):
    model: MaskedLMConfig
    evaluation: MaskedEvaluation

    def __post_init__(self):
        super().__post_init__()
        if self.data.unit == "pixel":
            raise SetupError(f"data={self.data.name} holds images: masked language modelling takes text")


class MaskedLanguage(Language):
    name, experiment = "masked", "builtin_mlm"
    spec = MaskedSpec
    metrics = (
        Metric("masked_ppl", "perplexity of masked words", "masked ppl", 2, logarithmic=True),
        Metric("accuracy", "accuracy of masked words", "accuracy", 2, unit="%", higher_is_better=True),
    )
    secondary_metrics = ("accuracy",)
    protocols = preferred_protocols = ("segment",)
    scored = ("context", "tokens")
    pipeline = "fill-mask"

    def primary(self, spec: LanguageSpec) -> str:
        return "masked_ppl"

    def build_model(self, spec: LanguageSpec, attention, corpus: Corpus | None):
        from fourierformer.models.mlm import MaskedLM

        assert isinstance(spec.model, MaskedLMConfig)  # of a MaskedSpec
        return MaskedLM(spec.model, self.vocabulary(spec, corpus), spec.data.cutoffs or [], attention, seed=spec.seed)

    def export_config(self, spec: LanguageSpec, model, corpus: Corpus) -> dict:
        return {}

    def export_files(self, spec: LanguageSpec, corpus: Corpus) -> dict[str, dict]:
        return {}

    def trained(self, spec: LanguageSpec, model, corpus: Corpus, step: int):
        from fourierformer.tasks.trained import TrainedMaskedModel

        return TrainedMaskedModel(model, spec, corpus, step)

    def objective_class(self):
        from fourierformer.tasks.masked_objective import MaskedObjective

        return MaskedObjective

    def scored_text(self, numbers: dict) -> str:
        return f"segments of {numbers['context']} tokens, {numbers['tokens']} masked words scored"


register(MaskedLanguage())

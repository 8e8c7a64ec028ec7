"""The task of in-context regression, where one attention layer is the estimator: its facts, and the parts of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fourierformer.data.regression.spec import RegressionData
from fourierformer.models.config import RegressionConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Metric
from fourierformer.tasks.drawn import DrawnEvaluation, DrawnSpec, DrawnTask

if TYPE_CHECKING:
    from fourierformer.data.regression.corpus import RegressionCorpus


class RegressionEvaluation(DrawnEvaluation):
    task, known = "regression", ("queries",)


@dataclass(frozen=True, kw_only=True)
class RegressionSpec(DrawnSpec):
    model: RegressionConfig
    data: RegressionData
    evaluation: RegressionEvaluation


class Regression(DrawnTask[RegressionSpec]):
    name = "regression"
    experiment, debug = "regression", "smoke_regression"
    spec: ClassVar[type[RegressionSpec]] = RegressionSpec
    unit, short_unit = "points", "points"
    metrics = (
        Metric("mse", "squared error", "error", 4),
        Metric("ratio", "squared error / error of the GP posterior", "error / optimum", 3),
    )
    secondary_metrics = ("ratio",)
    protocols = preferred_protocols = ("queries",)
    protocol_notes: ClassVar = {"queries": "optimum: the posterior mean of the Gaussian process that f was drawn from"}
    default_columns = (("valid", "queries"), ("test", "queries"))
    scored = ("context", "queries", "sequences")

    def primary(self, spec: RegressionSpec) -> str:
        return "mse"

    def geometry(self, spec: RegressionSpec):
        return spec.model.geometry(spec.data.dimension, spec.data.context)

    def corpus(self, spec: RegressionSpec) -> RegressionCorpus:
        from fourierformer.data.regression.corpus import RegressionCorpus

        return RegressionCorpus(spec.data)

    def build_model(self, spec: RegressionSpec, attention, corpus: RegressionCorpus | None):
        from fourierformer.models.regression import RegressionModel

        return RegressionModel(spec.model, spec.data.dimension, spec.data.context, attention, seed=spec.seed)

    def objective(self, spec: RegressionSpec, corpus: RegressionCorpus, model, device, processes):
        from fourierformer.tasks.regression_objective import RegressionObjective

        return RegressionObjective(corpus, **self.options(spec, device, processes))

    def samples_per_step(self, spec: RegressionSpec) -> int:
        return spec.global_batch_size * spec.data.queries

    def activation_bytes(self, spec: RegressionSpec, micro_batch: int) -> int:
        """In float32: about 6 numbers for each pair of a query and a key, and 8 for each feature."""
        data, points = spec.data, spec.data.context + spec.data.queries
        return 4 * micro_batch * spec.model.layers * points * (6 * data.context + 8 * data.dimension)

    def data_line(self, corpus: RegressionCorpus) -> str:
        data = corpus.data
        return (
            f"{data.name}: drawn here, {data.context} pairs and {data.queries} queries in {data.dimension} dimensions, "
            f"{data.covariance}, rho {data.rho:g}"
        )

    def scored_text(self, numbers: dict) -> str:
        return f"{numbers['context']} pairs and {numbers['queries']} queries, {numbers['sequences']} sequences"


register(Regression())

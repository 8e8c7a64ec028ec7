"""Warnings for results whose loss is misleading: a line under the table, and in the report."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fourierformer.results.comparison import Row
from fourierformer.results.labels import full_label
from fourierformer.results.runs import Run


class LossWarning(NamedTuple):
    """A number of the attention layers, with the values at which the loss is misleading, and why."""

    numbers_of: Callable[[Run], Iterable[dict[str, float]]]
    key: str
    misleads: Callable[[float], bool]
    text: str

    def values(self, row: Row) -> list[float]:
        return [numbers[self.key] for run in row.runs for numbers in self.numbers_of(run) if self.key in numbers]


def _logged(run: Run) -> list[dict[str, float]]:
    return [run.diagnostics]


def _measured(run: Run) -> Iterable[dict[str, float]]:
    """By scripts/head_redundancy.py, in each split."""
    return run.heads.values()


FLOORED = LossWarning(
    _logged,
    "floor_share",
    lambda share: share > 0.1,
    "attention.floor replaces the sum of weights of {0:.0%} of the queries: their outputs are no averages of the "
    "values, and the loss says little about the estimated kernel",
)
# signs of one cause: only the first that is known becomes a line
SWITCHED_OFF = (
    LossWarning(
        _measured,
        "attended_share",
        lambda share: share < 0.5,
        "the attended share is {0:.0%}: in some layers attention.eps dominates the denominator, so outputs are near 0",
    ),
    LossWarning(
        _logged,
        "attended_share",
        lambda share: share < 0.5,
        "the attended share of the last query of a sequence is {0:.0%}: in some layers attention.eps dominates the "
        "denominator, so outputs are near 0",
    ),
    LossWarning(
        _measured,
        "rank",
        lambda rank: rank < 1,
        "the rank of the attention maps is {0:.1f}: in some layers attention.eps dominates the denominator",
    ),
)


def misleading(row: Row, rows: list[Row]) -> Iterator[str]:
    """Sentences on why the loss of a row is misleading: by the numbers that its attention layers logged, or that were
    measured."""
    sign = next((warning for warning in SWITCHED_OFF if warning.values(row)), None)
    for warning in filter(None, (FLOORED, sign)):
        values = warning.values(row)
        if values and warning.misleads(mean := sum(values) / len(values)):
            yield f"{full_label(row, rows)}: on average over the layers {warning.text.format(mean)}"

"""Where what attention layers say of themselves makes a loss say little: a line under the table, and in the report."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fourierformer.results.comparison import Row, row_label
from fourierformer.results.runs import Run


class Doubt(NamedTuple):
    """A number of the attention layers: where it makes a loss say little, and why."""

    numbers_of: Callable[[Run], Iterable[dict[str, float]]]
    key: str
    doubtful: Callable[[float], bool]
    text: str

    def values(self, row: Row) -> list[float]:
        return [numbers[self.key] for run in row.runs for numbers in self.numbers_of(run) if self.key in numbers]


def _logged(run: Run) -> list[dict[str, float]]:
    return [run.diagnostics]


def _measured(run: Run) -> Iterable[dict[str, float]]:
    """By scripts/head_redundancy.py, in each split."""
    return run.heads.values()


FLOORED = Doubt(
    _logged,
    "floor_share",
    lambda share: share > 0.1,
    "attention.floor replaces the sum of weights of {0:.0%} of the queries: their outputs are no averages of the "
    "values, and the loss says little about the estimated kernel",
)
# signs of one thing: the first that is known is said
SWITCHED_OFF = (
    Doubt(
        _measured,
        "attended_share",
        lambda share: share < 0.5,
        "{0:.0%} of the weight goes to keys, attention.eps takes the rest: layers are partly switched off",
    ),
    Doubt(
        _logged,
        "attended_share",
        lambda share: share < 0.5,
        "{0:.0%} of the weight of a sequence's last query goes to keys, attention.eps takes the rest: layers are "
        "partly switched off",
    ),
    Doubt(
        _measured,
        "rank",
        lambda rank: rank < 1,
        "the rank of the attention maps is {0:.1f}: layers are partly switched off",
    ),
)


def doubts(row: Row, rows: list[Row]) -> Iterator[str]:
    """Why the loss of a row says little, if it does: by what its attention layers logged, and what was measured."""
    sign = next((doubt for doubt in SWITCHED_OFF if doubt.values(row)), None)
    for doubt in filter(None, (FLOORED, sign)):
        values = doubt.values(row)
        if values and doubt.doubtful(mean := sum(values) / len(values)):
            yield f"{row_label(row, rows)}: on average over the layers {doubt.text.format(mean)}"

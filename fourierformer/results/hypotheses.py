"""The hypotheses of docs/results.md, decided by the rows of its runs as the plan there says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fourierformer.results.comparison import Row
from fourierformer.results.layout import DASH, Table, title_of
from fourierformer.results.metrics import change_text, metric
from fourierformer.results.significance import p_text, signed
from fourierformer.results.statistics import LEVEL, Comparison, compare, holm, mean
from fourierformer.tasks import Column

HEADER = ["", "comparison", "n", "difference", "relative", "corrected p", "verdict"]


@dataclass(frozen=True)
class Configuration:
    """An attention, with those of its knobs that tell it from another configuration of the same attention."""

    attention: str
    knobs: Mapping[str, object] = field(default_factory=dict)

    def is_of(self, row: Row) -> bool:
        return row.attention == self.attention and all(
            row.settings.get(key) == knob for key, knob in self.knobs.items()
        )

    def __str__(self) -> str:
        return " ".join([self.attention, *(f"{key}={value}" for key, value in self.knobs.items())])


@dataclass(frozen=True)
class Hypothesis:
    """`first` is expected to beat `second`; with `worse`, to lose against it."""

    name: str
    first: Configuration
    second: Configuration
    worse: bool = False


@dataclass(frozen=True)
class Decision:
    hypothesis: Hypothesis
    found: Comparison
    seeds: int
    baseline: float  # mean of the second configuration
    p: float | None  # corrected

    def verdict(self, higher_is_better: bool) -> str:
        if self.p is None or self.found.difference is None or self.p >= 1 - LEVEL:
            return "not decided"
        first_wins = (self.found.difference > 0) == higher_is_better
        return "confirmed" if first_wins != self.hypothesis.worse else "contradicted"


SOFTMAX, FOURIER = Configuration("softmax"), Configuration("fourier", {"eps": 1e-6})
MATCHED, GAUSSIAN = Configuration("fourier_matched"), Configuration("gaussian")
PLAN = (
    Hypothesis("H1", FOURIER, SOFTMAX),
    Hypothesis("H2", MATCHED, SOFTMAX),
    Hypothesis("H3", GAUSSIAN, SOFTMAX, worse=True),
    Hypothesis("H3", FOURIER, GAUSSIAN),
    Hypothesis("H4", Configuration("fourier", {"eps": 0}), FOURIER, worse=True),
    Hypothesis("H5", Configuration("fourier_first_coordinate"), SOFTMAX),
    Hypothesis("H5", Configuration("fourier_first_coordinate"), FOURIER),
    Hypothesis("H6", Configuration("fourier_vector"), FOURIER),
    Hypothesis("H6", Configuration("fourier_head"), FOURIER),
)


def decide(rows: Iterable[Row], column: Column, plan: Iterable[Hypothesis] = PLAN) -> list[Decision]:
    """Those whose two configurations were run; p is corrected (Holm) over all of them."""
    rows = list(rows)
    pairs = [(each, _row(rows, each.first), _row(rows, each.second)) for each in plan]
    cells = [(each, one.cell(column), two.cell(column)) for each, one, two in pairs if one and two]
    values = [(each, *_on_common_seeds(one.values, two.values)) for each, one, two in cells if one and two]
    measured = [(each, one, two, compare(one, two)) for each, one, two in values if one]
    corrected = iter(holm([found.p for *_, found in measured if found.p is not None]))
    return [
        Decision(each, found, len(one), mean(two.values()), None if found.p is None else next(corrected))
        for each, one, two, found in measured
    ]


def hypothesis_table(rows: list[Row], column: Column, plan: Iterable[Hypothesis] = PLAN) -> Table:
    kind, primary = metric(rows[0].primary), rows[0].primary
    body = [_line(decision, primary, kind.higher_is_better) for decision in decide(rows, column, plan)]
    where = f"{column[0]} {column[1].replace('_', ' ')}"
    note = (
        "differences: mean ± 95 % t-interval, paired over the seeds that both have; p corrected by Holm over this table"
    )
    return Table(
        f"{title_of(rows)}: the hypotheses, by {kind.name}, {where}",
        primary,
        rows,
        HEADER,
        body,
        set(),
        set(),
        [],
        [note],
    )


def _line(decision: Decision, primary: str, higher_is_better: bool) -> list[str]:
    found, each = decision.found, decision.hypothesis
    difference = DASH if found.difference is None else signed(found.difference, primary)
    if found.half_width is not None:
        difference += f" ± {metric(primary).text(found.half_width)}"
    relative = DASH
    if found.difference is not None:
        relative = change_text(decision.baseline + found.difference, decision.baseline, primary)
    p = DASH if decision.p is None else p_text(decision.p)
    verdict = decision.verdict(higher_is_better)
    return [each.name, f"{each.first} - {each.second}", str(decision.seeds), difference, relative, p, verdict]


def _row(rows: list[Row], wanted: Configuration) -> Row | None:
    return next((row for row in rows if wanted.is_of(row)), None)


def _on_common_seeds(one: Mapping, two: Mapping) -> tuple[dict, dict]:
    seeds = [seed for seed in one if seed in two]
    return {seed: one[seed] for seed in seeds}, {seed: two[seed] for seed in seeds}

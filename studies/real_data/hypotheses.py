"""The hypotheses of plan.md, decided by the rows as the plan states."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.results.comparison import Cell, Row
from fourierformer.results.formats import DASH, Table
from fourierformer.results.metrics import column_text, metric
from fourierformer.results.statistics import (
    SIGNIFICANT,
    Difference,
    compare,
    corrected,
    difference_text,
    half_width,
    p_text,
)
from fourierformer.results.tables import title_of
from fourierformer.tasks import Column

HERE = Path(__file__).resolve().parent
# the files of rows, and the evaluation that the plan names
EVIDENCE = {"evidence_lm": ("test", "overlapping"), "evidence_vit": ("valid", "last")}
HEADER = ["", "comparison", "n", "difference", "relative", "corrected p", "verdict"]


@dataclass(frozen=True)
class Configuration:
    """An attention, with those of its knobs that tell it from another configuration of the same attention."""

    attention: str
    knobs: Mapping[str, float] = field(default_factory=dict)

    def is_of(self, row: Row) -> bool:
        """Knobs of a collected row are text: "1e-06"."""
        return row.attention == self.attention and all(
            key in row.settings and float(row.settings[key]) == knob for key, knob in self.knobs.items()
        )

    def __str__(self) -> str:
        return " ".join([self.attention, *(f"{key}={value}" for key, value in self.knobs.items())])


@dataclass(frozen=True)
class Hypothesis:
    """`first` is expected to beat `second`; with `worse`, to lose against it, and by its mean not to beat `bar`."""

    name: str
    first: Configuration
    second: Configuration
    worse: bool = False
    bar: Configuration | None = None


@dataclass(frozen=True)
class Decision:
    hypothesis: Hypothesis
    difference: Difference
    first: Cell
    second: Cell
    p: float | None  # corrected
    above_bar: float | None = None  # the first configuration's mean minus that of the bar, on common seeds

    def verdict(self, higher_is_better: bool) -> str:
        if self.p is None or self.difference.mean is None or self.p >= SIGNIFICANT:
            return "not decided"
        first_wins = (self.difference.mean > 0) == higher_is_better
        if first_wins == self.hypothesis.worse:
            return "contradicted"
        if self.hypothesis.bar is None:
            return "confirmed"
        gain = math.nan if self.above_bar is None else self.above_bar * (1 if higher_is_better else -1)
        return "confirmed" if gain <= 0 else "not decided"  # also where the bar is unknown or has diverged


SOFTMAX, FOURIER = Configuration("softmax"), Configuration("fourier", {"eps": 1e-6})
MATCHED, GAUSSIAN = Configuration("fourier_matched"), Configuration("gaussian")
PLAN = (
    Hypothesis("H1", FOURIER, SOFTMAX),
    Hypothesis("H2", MATCHED, SOFTMAX),
    Hypothesis("H3", GAUSSIAN, SOFTMAX, worse=True),
    Hypothesis("H3", FOURIER, GAUSSIAN),
    Hypothesis("H4", Configuration("fourier", {"eps": 0}), FOURIER, worse=True, bar=SOFTMAX),
    Hypothesis("H5", Configuration("fourier_first_coordinate"), SOFTMAX),
    Hypothesis("H5", Configuration("fourier_first_coordinate"), FOURIER),
    Hypothesis("H6", Configuration("fourier_vector"), FOURIER),
    Hypothesis("H6", Configuration("fourier_head"), FOURIER),
)


def decide(rows: Iterable[Row], column: Column, plan: Iterable[Hypothesis] = PLAN) -> list[Decision]:
    """Those whose two configurations were run; p is corrected (Holm) over those of them that have one."""
    rows = list(rows)
    measured = []
    for hypothesis in plan:
        cells = on_common_seeds(*(_cell(rows, wanted, column) for wanted in (hypothesis.first, hypothesis.second)))
        if cells:
            measured.append((hypothesis, *cells, compare(*cells)))
    p_values = corrected(difference for *_, difference in measured)
    return [
        Decision(hypothesis, difference, first, second, p, _above(rows, hypothesis, column))
        for (hypothesis, first, second, difference), p in zip(measured, p_values, strict=True)
    ]


def _above(rows: list[Row], hypothesis: Hypothesis, column: Column) -> float | None:
    bar = _cell(rows, hypothesis.bar, column) if hypothesis.bar else None
    cells = on_common_seeds(_cell(rows, hypothesis.first, column), bar)
    return cells[0].mean - cells[1].mean if cells else None


def hypothesis_table(rows: list[Row], column: Column, plan: Iterable[Hypothesis] = PLAN) -> Table:
    primary = rows[0].primary
    title = f"{title_of(rows)}: the hypotheses, by {metric(primary).name}, {column_text(column)}"
    decisions = decide(rows, column, plan)
    tested = sum(decision.p is not None for decision in decisions)
    note = (
        "differences: mean ± 95 % t-interval, paired over the seeds that both have; relative: the same of "
        f"first / second - 1; p corrected by Holm over the comparisons that have one, here {tested} of {len(decisions)}"
    )
    return Table(title, rows, HEADER, [_line(decision, primary) for decision in decisions], notes=[note])


def _line(decision: Decision, primary: str) -> list[str]:
    hypothesis, difference = decision.hypothesis, decision.difference
    return [
        hypothesis.name,
        f"{hypothesis.first} - {hypothesis.second}",
        str(decision.first.n),
        difference_text(difference, primary) or DASH,
        DASH if difference.mean is None else relative_text(relative(decision.first, decision.second)),
        DASH if decision.p is None else p_text(decision.p),
        decision.verdict(metric(primary).higher_is_better),
    ]


def relative(first: Cell, second: Cell) -> Cell:
    """first / second - 1 for each seed, of which both have the same."""
    return Cell({seed: value / second.values[seed] - 1 for seed, value in first.values.items()})


def relative_text(cell: Cell) -> str:
    half = half_width(cell)
    return f"{100 * cell.mean:+.1f}%" + (f" ± {100 * half:.1f}%" if half is not None else "")


def _cell(rows: list[Row], wanted: Configuration, column: Column) -> Cell | None:
    """The values of a configuration. SetupError for several, which differ in what the plan does not name: a rate."""
    cells = {row.group: cell for row in rows if wanted.is_of(row) and (cell := row.cell(column))}
    if len(cells) > 1:
        raise SetupError(
            f"{wanted} has several groups of runs ({', '.join(cells)}), and a hypothesis is decided by one: collect "
            "the others into a file of their own"
        )
    return next(iter(cells.values()), None)


def on_common_seeds(first: Cell | None, second: Cell | None) -> tuple[Cell, Cell] | None:
    """None where they have no seed in common."""
    if first is None or second is None:
        return None
    seeds = [seed for seed in first.values if seed in second.values]
    return (Cell({s: first.values[s] for s in seeds}), Cell({s: second.values[s] for s in seeds})) if seeds else None

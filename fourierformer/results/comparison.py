"""Runs grouped over seeds: one row per configuration, one cell per (split, protocol), every value kept by seed."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fourierformer.results.metrics import HEADS, metric_text, task_behind
from fourierformer.results.runs import Run, number
from fourierformer.tasks import Column, Task

UNKNOWN = ""
BASELINE = "softmax"


@dataclass(frozen=True)
class Cell:
    """Values of one quantity by seed, so that two cells can also be compared seed by seed.

    Examples:
        >>> from fourierformer.results import Cell
        >>> cell = Cell({1: 60.0, 2: 61.0, 3: 62.0})
        >>> cell.n, cell.mean, cell.sd
        (3, 61.0, 1.0)
    """

    values: dict[int | str, float]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return sum(self.values.values()) / self.n  # an infinite perplexity must stay infinite

    @property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1); None for a single seed, which has none, and for an infinite value."""
        if self.n < 2 or not all(map(math.isfinite, self.values.values())):
            return None
        return statistics.stdev(self.values.values())


@dataclass
class Row:
    """One configuration: its completed runs (one per seed) and the runs of it that gave no numbers.

    Examples:
        >>> from fourierformer.results import collect, comparison
        >>> (row,) = comparison(collect("runs"))
        >>> row.attention, row.n, row.cell(("valid", "segment")).n
        ('softmax', 1, 1)
    """

    experiment: str
    model: str
    attention: str
    group: str
    data: str = UNKNOWN
    primary: str = UNKNOWN
    task_name: str = UNKNOWN
    runs: list[Run] = field(default_factory=list)
    others: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def task(self) -> Task:
        return task_behind(self.task_name, self.primary)

    @property
    def settings(self) -> dict:
        """The attention's knobs, which all runs of a group share."""
        return next((run.settings for run in (*self.runs, *self.others) if run.settings), {})

    @property
    def config(self) -> dict:
        """What decides what all runs of a group compute, by dotted key."""
        return next((run.config for run in (*self.runs, *self.others) if run.config), {})

    @property
    def is_baseline(self) -> bool:
        """Softmax in every place of the model: a decoder or cross-attention of its own may be another."""
        return self.attention == BASELINE and all(
            value in (None, BASELINE) for key, value in self.config.items() if of_attention(key) and "." not in key
        )

    @property
    def diverged(self) -> bool:
        """Whether some seed did: the mean over the others says less than it seems to."""
        return any(run.state == "diverged" for run in self.others)

    def cell(self, column: Column, key: str | None = None) -> Cell | None:
        """A metric (the primary one) on one split under one protocol; None where no seed has it. Protocol `heads`: how
        much the heads differ."""
        wanted = key or self.primary
        if column[1] == HEADS:
            return self._over_seeds(lambda run: run.heads.get(column[0], {}).get(wanted))
        return self._over_seeds(lambda run: evaluations(run).get(column, {}).get(wanted))

    def quantity(self, key: str) -> Cell | None:
        """A number that stands at the top of the summary: parameters, seconds, tokens_per_s, steps."""
        return self._over_seeds(lambda run: run.summary.get(key))

    def protocols(self, column: Column) -> set[tuple]:
        """The distinct (context, stride, tokens scored) or (images scored,) behind a cell: several cannot be
        averaged."""
        measured = [evaluations(run).get(column) for run in self.runs]
        return {tuple(numbers.get(key) for key in self.task.scored) for numbers in measured if numbers is not None}

    @property
    def state(self) -> str:
        if not self.others:
            return "done"
        parts = [f"{self.n} of {self.n + len(self.others)} done"] if self.n else []
        counts = Counter(run.state for run in self.others)
        if self.n or len(self.others) > 1:
            return ", ".join([*parts, *(f"{count} {state}" for state, count in sorted(counts.items()))])
        return self.others[0].state

    def _over_seeds(self, value: Callable[[Run], object]) -> Cell | None:
        by_seed = {seed_of(run): value(run) for run in self.runs}
        values = {seed: number(item) for seed, item in by_seed.items() if item is not None}
        return Cell(values) if values else None


def canonical(value: object) -> str:
    """Equal for 2 and 2.0, which compute the same."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def of_attention(key: str) -> bool:
    """Whether a key of a config belongs to an attention: attention.eps, cross_attention."""
    return key.partition(".")[0].endswith("attention")


def comparison(runs: Iterable[Run]) -> list[Row]:
    """One row per group (the hash of the configuration without its seed); groups that compute the same are one. Runs
    set aside have no row; all others do.

    Examples:
        >>> from fourierformer.results import collect, comparison
        >>> [(row.model, row.attention, row.state) for row in comparison(collect("runs"))]
        [('lm_tiny', 'softmax', 'done')]
    """
    runs = [run for run in runs if run.state != "set aside"]
    rows: dict[tuple[str, str], Row] = {}
    groups: dict[str, str] = {}
    for run in runs:
        if run.field("group") is not None:
            key = (_text(run, "experiment"), groups.setdefault(_computation(run), _text(run, "group")))
            _add(rows.setdefault(key, _row(run, key[1])), run)
    for run in runs:
        if run.field("group") is None:
            _add_by_names(rows, run)
    for row in rows.values():
        _inherit(row, rows.values())
    # softmax is what everything else is measured against, so it stands on top of its model
    names = lambda row: (row.model, row.attention != BASELINE, row.attention)  # noqa: E731
    return sorted(rows.values(), key=lambda row: (row.experiment, row.data, *names(row), _in_order(row), row.group))


def _in_order(row: Row) -> list[tuple]:
    """By which configurations of one attention are sorted: numbers by size."""
    numbers = {key: isinstance(value, int | float) for key, value in row.config.items()}
    return [(k, not numbers[k], v if numbers[k] else str(v)) for k, v in sorted(row.config.items())]


def seed_of(run: Run) -> int | str:
    seed = run.field("seed")
    return seed if isinstance(seed, int) else str(run.path)


def evaluations(run: Run) -> dict[Column, dict]:
    """{(split, protocol): {nll, ppl, tokens, ...}}, or {nll, top1, images, ...} inside, without anything that does not
    have that shape."""
    splits = run.summary.get("results")
    numbers = {}
    for split, protocols in splits.items() if isinstance(splits, dict) else ():
        for protocol, values in protocols.items() if isinstance(protocols, dict) else ():
            if isinstance(values, dict):
                plain = {key: value for key, value in values.items() if not isinstance(value, list | dict)}
                numbers[str(split), str(protocol)] = plain
    return numbers


def _computation(run: Run) -> str:
    """Equal for runs of one experiment that compute the same but for their seed; the group of a run that does not know
    its whole config."""
    if all(map(of_attention, run.config)):
        return _text(run, "group")
    names = [_text(run, key) for key in ("experiment", "model", "attention")]
    return f"{names} {sorted((key, canonical(value)) for key, value in run.config.items())}"


def _text(run: Run, key: str) -> str:
    value = run.field(key)
    return UNKNOWN if value is None else str(value)


def _row(run: Run, group: str) -> Row:
    return Row(_text(run, "experiment"), _text(run, "model"), _text(run, "attention"), group)


def _add(row: Row, run: Run) -> None:
    row.data, row.primary = row.data or _text(run, "data"), row.primary or _text(run, "primary")
    row.task_name = row.task_name or _text(run, "task")
    if not run.completed:
        row.others.append(run)
    elif seed_of(run) in {seed_of(other) for other in row.runs}:
        row.notes.append(f"{run.path}: seed {seed_of(run)} of {row.attention} is there twice, counted once")
    else:
        row.runs.append(run)


def _add_by_names(rows: dict, run: Run) -> None:
    """A run that died before it wrote its group joins the one row of its experiment, model and attention."""
    names = tuple(_text(run, key) for key in ("experiment", "model", "attention"))
    same = [row for row in rows.values() if (row.experiment, row.model, row.attention) == names]
    key = (names[0], f"{names[1]}-{names[2]}")
    _add(same[0] if len(same) == 1 else rows.setdefault(key, _row(run, key[1])), run)


def _inherit(row: Row, rows: Iterable[Row]) -> None:
    """A row without any summary takes data and metric from its experiment, if that has only one of each."""
    if row.data and row.primary:
        return
    known = {(other.data, other.primary) for other in rows if other.experiment == row.experiment and other.primary}
    if len(known) == 1:
        row.data, row.primary = known.pop()


def mean_text(cell: Cell, key: str) -> str:
    """'61.20 ± 0.31', without what a single seed or an infinite value does not have."""
    return metric_text(cell.mean, key) + ("" if cell.sd is None else f" ± {metric_text(cell.sd, key)}")

"""Runs grouped over seeds: one row per configuration, one cell per (split, protocol), every value kept by seed."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fourierformer.results import statistics
from fourierformer.results.metrics import task_behind
from fourierformer.results.runs import Run, number
from fourierformer.tasks import Column, Task, tasks

UNKNOWN = ""
HEADS = "heads"
SPLITS = ("valid", "test")


@dataclass(frozen=True)
class Cell:
    """Values of one quantity by seed, so that two cells can also be compared seed by seed."""

    values: dict[int | str, float]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return statistics.mean(self.values.values())

    @property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1); None for a single seed, which has none, and for an infinite value."""
        return statistics.sd(self.values.values())


@dataclass
class Row:
    """One configuration: its completed runs (one per seed) and the runs of it that gave no numbers."""

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
    def columns(self) -> list[Column]:
        return sorted({key for run in self.runs for key in evaluations(run)}, key=column_order)

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
        keys = self.task.scored
        return {tuple(found.get(key) for key in keys) for found in self._found(column)}

    @property
    def state(self) -> str:
        if not self.others:
            return "done"
        parts = [f"{self.n} of {self.n + len(self.others)} done"] if self.n else []
        counts = Counter(run.state for run in self.others)
        if self.n or len(self.others) > 1:
            return ", ".join([*parts, *(f"{count} {state}" for state, count in sorted(counts.items()))])
        return self.others[0].state

    def _found(self, column: Column) -> list[dict]:
        return [found for run in self.runs if (found := evaluations(run).get(column)) is not None]

    def _over_seeds(self, value: Callable[[Run], object]) -> Cell | None:
        found = {seed_of(run): value(run) for run in self.runs}
        values = {seed: number(item) for seed, item in found.items() if item is not None}
        return Cell(values) if values else None


def comparison(runs: Iterable[Run]) -> list[Row]:
    """One row per group (the hash of the configuration without its seed). Runs set aside have no row; all others do."""
    runs = [run for run in runs if run.state != "set aside"]
    rows: dict[tuple[str, str], Row] = {}
    nameless = []
    for run in runs:
        group = run.field("group")
        if group is None:
            nameless.append(run)
            continue
        key = (_text(run, "experiment"), str(group))
        _add(rows.setdefault(key, _row(run, key[1])), run)
    for run in nameless:
        _place(rows, run)
    for row in rows.values():
        _inherit(row, rows.values())
    return sorted(rows.values(), key=lambda row: (row.experiment, row.data, row.model, *baseline_first(row), row.group))


def baseline_first(row: Row) -> tuple[bool, str]:
    """Softmax is what everything else is measured against, so it stands on top."""
    return row.attention != "softmax", row.attention


def row_label(row: Row, rows: Iterable[Row]) -> str:
    """The attention's name; where a table holds several configurations of it, with the knobs they differ in, or with
    the group's hash where no knob tells them apart."""
    twins = [other for other in rows if (other.model, other.attention) == (row.model, row.attention)]
    if len(twins) == 1:
        return row.attention
    keys = list(dict.fromkeys(key for twin in twins for key in twin.settings))
    differing = [key for key in keys if len({str(twin.settings.get(key)) for twin in twins}) > 1]
    labels = {twin.group: " ".join(f"{key}={twin.settings.get(key)}" for key in differing) for twin in twins}
    unique = len(set(labels.values())) == len(twins)
    return f"{row.attention} {labels[row.group]}" if unique else f"{row.attention} [{row.group[:8]}]"


def column_order(column: Column) -> tuple:
    """As the tasks order their protocols; others follow alphabetically."""
    split, protocol = column
    protocols = [protocol for task in tasks() for protocol in task.protocols]
    place = {name: i for names in (SPLITS, protocols) for i, name in enumerate(names)}
    return place.get(protocol, len(place)), protocol, place.get(split, len(place)), split


def seed_of(run: Run) -> int | str:
    seed = run.field("seed")
    return seed if isinstance(seed, int) else str(run.path)


def evaluations(run: Run) -> dict[Column, dict]:
    """{(split, protocol): {nll, ppl, tokens, ...}}, or {nll, top1, images, ...} inside, without anything that does not
    have that shape."""
    splits = run.summary.get("results")
    found = {}
    for split, protocols in splits.items() if isinstance(splits, dict) else ():
        for protocol, values in protocols.items() if isinstance(protocols, dict) else ():
            if isinstance(values, dict):
                found[str(split), str(protocol)] = values
    return found


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


def _place(rows: dict, run: Run) -> None:
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

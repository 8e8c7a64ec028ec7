"""Settings by which rows differ, and the labels of rows made of them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fourierformer.results.comparison import ATTENTION, Row, comparison
from fourierformer.results.runs import Run


def setting_of(row: Row) -> dict[str, object]:
    """Everything but its attention that decides what the runs of a row compute: learning rate, layers, steps, ..."""
    return {key: value for key, value in row.config.items() if not key.startswith(ATTENTION)}


def same_setting(one: Row, other: Row) -> bool:
    """Whether two rows differ in their attention alone. A row that does not know its config is compared with all."""
    return not one.config or not other.config or not any(differing_values([setting_of(one), setting_of(other)]))


def mixes_settings(rows: Sequence[Row]) -> bool:
    """Whether rows of one model differ in more than their attention."""
    return any(not same_setting(row, other) for row in rows for other in rows if row.model == other.model)


def row_label(row: Row, rows: Iterable[Row]) -> str:
    """The attention's name, then the values that distinguish the row: knobs from rows of the same attention, all other
    settings from all rows of the model (`fourier eps=0 lr=0.002`). The group's hash where nothing known differs."""
    of_model = [other for other in rows if other.model == row.model]
    known = [other for other in of_model if other.config]  # of a damaged or very old run nothing is known
    twins = [other for other in of_model if other.attention == row.attention]
    keys = dict.fromkeys(key for twin in twins for key in twin.config if key.startswith(ATTENTION))
    knobs = [key for key in keys if len({str(twin.config.get(key)) for twin in twins}) > 1]
    own = {other.group for other in twins}
    configs = [
        {key: other.config[key] for key in knobs if other.group in own and key in other.config} | setting_of(other)
        for other in known
    ]
    labels = dict(zip((other.group for other in known), differing_values(configs), strict=True))
    unique = len({labels.get(twin.group, "") for twin in twins}) == len(twins)
    return f"{row.attention} {labels.get(row.group, '')}".strip() if unique else f"{row.attention} [{row.group[:8]}]"


def labels_of_runs(runs: Iterable[Run]) -> dict[Path, str]:
    """The labels of runs by their paths, each among the runs of its experiment and data. Runs set aside have none."""
    rows = comparison(runs)
    labels: dict[Path, str] = {}
    for row in rows:
        near = [other for other in rows if (other.experiment, other.data) == (row.experiment, row.data)]
        labels |= dict.fromkeys((run.path for run in (*row.runs, *row.others)), row_label(row, near))
    return labels


def differing_values(configs: Sequence[Mapping[str, object]]) -> list[str]:
    """For each config the values in which it differs from some other: 'lr=0.002 layers=2', '' where there are none.

    A key has its last part for a name, or all of it where two would have the same name. What only some configs have
    (the keys of another optimizer, say) is left out of the others.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    short = Counter(key.rpartition(".")[2] for key in differing)
    names = {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in differing}
    return [
        " ".join(f"{names[key]}={value_text(config[key])}" for key in differing if key in config) for config in configs
    ]


def value_text(value: object) -> str:
    """As on the command line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def full_label(row: Row, rows: list[Row]) -> str:
    """The same after the model's name, where there are several models."""
    return f"{row.model} {row_label(row, rows)}" if several_models(rows) else row_label(row, rows)


def several_models(rows: Iterable[Row]) -> bool:
    return len({row.model for row in rows}) > 1

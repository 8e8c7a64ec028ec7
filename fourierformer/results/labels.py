"""Settings by which rows differ, and the labels of rows made of them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fourierformer.results.comparison import Row, canonical, comparison, of_attention
from fourierformer.results.runs import Run


def setting_of(row: Row) -> dict[str, object]:
    """Everything but its attention that decides what the runs of a row compute: learning rate, layers, steps, ..."""
    return {key: value for key, value in row.config.items() if not of_attention(key)}


def same_setting(one: Row, other: Row) -> bool:
    """Whether two rows differ in their attention alone. A row that does not know its config is compared with all."""
    if not one.config or not other.config:
        return True
    ours, theirs = setting_of(one), setting_of(other)
    return all(canonical(ours.get(key)) == canonical(theirs.get(key)) for key in ours | theirs)


def mixes_settings(rows: Sequence[Row]) -> bool:
    """Whether rows of one model differ in more than their attention."""
    return any(not same_setting(row, other) for row in rows for other in rows if row.model == other.model)


def row_label(row: Row, rows: Iterable[Row]) -> str:
    """The attention's name, then the values that distinguish the row: knobs from rows of the same attention, all other
    settings from all rows of the model (`fourier eps=0 lr=0.002`). The group's hash where nothing known differs."""
    of_model = [other for other in rows if other.model == row.model]
    return _labels(row.attention, of_model, _settings(of_model))[id(row)]


def row_labels(rows: Sequence[Row]) -> list[str]:
    """`row_label` of every row, faster than one by one."""
    labels: dict[int, str] = {}
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        settings = _settings(of_model)
        for attention in dict.fromkeys(row.attention for row in of_model):
            labels |= _labels(attention, of_model, settings)
    return [labels[id(row)] for row in rows]


def _settings(rows: list[Row]) -> dict[str, dict[str, object]]:
    """The settings that not all rows share, by group. Of a damaged or very old run nothing is known."""
    known = [row for row in rows if row.config]
    return dict(zip((row.group for row in known), _only_differing(map(setting_of, known)), strict=True))


def _labels(attention: str, of_model: list[Row], settings: dict[str, dict[str, object]]) -> dict[int, str]:
    """The labels of the rows with this attention, by the rows' id."""
    twins = [row for row in of_model if row.attention == attention]
    knobs = _only_differing({k: v for k, v in row.config.items() if of_attention(k)} for row in twins)
    own = {row.group: knob for row, knob in zip(twins, knobs, strict=True)}
    configs = [own.get(group, {}) | setting for group, setting in settings.items()]
    labels = dict(zip(settings, differing_values(configs), strict=True))
    unique = len({labels.get(row.group, "") for row in twins}) == len(twins)
    endings = (labels.get(row.group, "") if unique else f"[{row.group[:8]}]" for row in twins)
    return {id(row): f"{attention} {ending}".strip() for row, ending in zip(twins, endings, strict=True)}


def _only_differing(configs: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """The configs without the keys that have the same value in all of them."""
    configs = list(configs)
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = {key for key in keys if len({canonical(config.get(key)) for config in configs}) > 1}
    return [{key: value for key, value in config.items() if key in differing} for config in configs]


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
    differing = [key for key in keys if len({canonical(config.get(key)) for config in configs}) > 1]
    short = Counter(key.rpartition(".")[2] for key in differing)
    names = {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in differing}
    return [
        " ".join(f"{names[key]}={value_text(config[key])}" for key in differing if key in config) for config in configs
    ]


def value_text(value: object) -> str:
    """As on the command line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def full_label(row: Row, rows: list[Row]) -> str:
    """`row_label` after the model's name, where there are several models."""
    return f"{row.model} {row_label(row, rows)}" if several_models(rows) else row_label(row, rows)


def full_labels(rows: list[Row]) -> list[str]:
    """`full_label` of every row."""
    labels = row_labels(rows)
    return [f"{row.model} {label}" for row, label in zip(rows, labels, strict=True)] if several_models(rows) else labels


def several_models(rows: Iterable[Row]) -> bool:
    return len({row.model for row in rows}) > 1

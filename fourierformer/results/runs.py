"""Read a run directory: numbers, state and origin of a run, and the files of it that could not be read."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fourierformer.checking import has_type
from fourierformer.config import config_hash, from_yaml, hashed_part
from fourierformer.errors import SetupError
from fourierformer.files import json_object, require_small
from fourierformer.tracking.jsonl import LARGEST, read_lines

SCHEMA = 1
DIRECTORY_NAME = re.compile(r"(?P<model>.+?)-(?P<attention>.+)-s(?P<seed>\d+)-(?P<hash>[0-9a-f]+)(\.old-\d+)?")
STATES = ("running", "completed", "failed", "interrupted", "diverged")  # of status.json
OF_A_LAYER = re.compile(r"(.+)/\d+")  # radius/00: a number of one attention layer
START = ("started", "commit", "dirty", "cpu")  # of each start of a run that was resumed
SET_ASIDE = re.compile(r"\.old-\d+$")
# of values in summary.json and meta.json, which may be of another type in a file of somebody else
NUMBERS = dict[str, float | None]
TEXTS, COUNT = ("commit", "command", "primary", "task", "unit"), ("parameters", "steps", "seed")
TYPES: dict[str, object] = {
    **dict.fromkeys(TEXTS, str | None),
    **dict.fromkeys(COUNT, int | None),
    **dict.fromkeys(("seconds", "data_wait"), float | None),
    **{"notes": list[str], "gpus": list[str] | None, "versions": dict[str, str | None], "evaluations": list[dict]},
    "starts": list[dict],
    **{"config": dict, "settings": dict, "heads": dict[str, NUMBERS], "head_layers": dict[str, list[NUMBERS]]},
    **{"head_origin": dict[str, dict], "diagnostics": NUMBERS},
}


@dataclass(frozen=True)
class Run:
    """One run directory.

    Examples:
        >>> from fourierformer.results import collect
        >>> (run,) = collect("runs/my_run")
        >>> run.summary["model"], run.field("attention"), run.config["model.layers"]
        ('lm_tiny', 'softmax', 1)

    `state` is that of status.json, or one of: unfinished (no status yet), damaged (a file of it cannot be read),
    set aside (an earlier attempt that `fresh=true` renamed). Only completed runs have numbers worth comparing.
    """

    path: Path
    state: str
    status: dict
    summary: dict  # empty where there is none that could be read
    meta: dict
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def completed(self) -> bool:
        return self.state == "completed" and bool(self.summary)

    def field(self, key: str):
        """`key` from the summary, else from what a run without one still has: meta.json, status.json, its name."""
        for source in (self.summary, self.meta, self.status, self._from_name):
            if source.get(key) is not None:
                return source[key]
        return None

    @cached_property
    def starts(self) -> list[dict]:
        """Every start of a run that was resumed, the last one included; [] for a run that was not."""
        if "starts" in self.summary:
            return list(self.summary["starts"])
        earlier = found if isinstance(found := self.meta.get("earlier"), list) else []
        starts = [start for start in earlier if isinstance(start, dict)]
        return [{key: start.get(key) for key in START} for start in [*starts, self.meta]] if starts else []

    @property
    def dirty(self) -> bool:
        """Whether it was made with uncommitted changes, at any of its starts."""
        return bool(self.field("dirty")) or any(start.get("dirty") for start in self.starts)

    @cached_property
    def settings(self) -> dict:
        """The attention's knobs without its name, from config.yaml or a collected row; empty where neither has them."""
        if "settings" in self.summary:
            return dict(self.summary["settings"])
        knobs = self._stored_config.get("attention")
        return {key: value for key, value in knobs.items() if key != "name"} if isinstance(knobs, dict) else {}

    @cached_property
    def config(self) -> dict:
        """The values that decide what the run computes, by dotted key, but its seed and keys of later versions at their
        defaults; of an older collected row only the attention's knobs are known."""
        if "config" in self.summary:
            return dict(self.summary["config"])
        values = hashed_part(self._stored_config) or {f"attention.{key}": v for key, v in self.settings.items()}
        return {key: value for key, value in values.items() if key != "seed"}

    @property
    def _stored_config(self) -> dict:
        return self._config_file[0]

    @cached_property
    def _config_file(self) -> tuple[dict, list[str]]:
        """The config in config.yaml, empty where it is none or not the one that was run; and what is wrong with it."""
        path = self.path / "config.yaml"
        if not path.exists():
            return {}, []
        try:
            values = from_yaml(path)
        except SetupError as error:
            return {}, [str(error)]
        known = self.summary.get("config_hash") or self.meta.get("config_hash")
        if known and config_hash(values) != known:
            return {}, ["config.yaml is damaged: it does not match the hash of the run"]
        return values, []

    @cached_property
    def heads(self) -> dict[str, dict[str, float]]:
        """What scripts/head_redundancy.py measured, by split: means over the layers, and one sd."""
        if "heads" in self.summary:
            return dict(self.summary["heads"])
        return {split: _head_numbers(values) for split, values in self._head_splits.items()}

    @cached_property
    def head_layers(self) -> dict[str, list[dict[str, float]]]:
        """The same of each layer, by split."""
        if "head_layers" in self.summary:
            return dict(self.summary["head_layers"])
        by_split = {split: values.get("layers") for split, values in self._head_splits.items()}
        return {
            split: [_head_means(layer if isinstance(layer, dict) else {}) for layer in layers]
            for split, layers in by_split.items()
            if isinstance(layers, list)
        }

    @cached_property
    def head_origin(self) -> dict[str, dict[str, str]]:
        """Commit and command that measured the heads, by split."""
        if "head_origin" in self.summary:
            return dict(self.summary["head_origin"])
        origins = {split: values.get("origin") for split, values in self._head_splits.items()}
        return {split: origin for split, origin in origins.items() if isinstance(origin, dict)}

    @cached_property
    def other_head_steps(self) -> dict[str, int]:
        """By split, the step of the weights whose heads were measured, where the results are those of another step."""
        best = self.summary.get("best")
        wanted = best.get("step") if isinstance(best, dict) else None
        steps = {split: values.get("step") for split, values in self._head_splits.items()}
        return {split: step for split, step in steps.items() if isinstance(step, int) and wanted not in (None, step)}

    @cached_property
    def layers(self) -> dict[str, list[float]]:
        """The last numbers that each attention layer logged: {"attended_share": [0.83, 0.33]}."""
        last = {key: row[key] for row in self.metrics for key in row if OF_A_LAYER.fullmatch(key)}
        layers: dict[str, list[float]] = {}
        for key, value in last.items():
            layers.setdefault(key.rpartition("/")[0], []).append(number(value))
        return layers

    @cached_property
    def diagnostics(self) -> dict[str, float]:
        """The same as means over the layers: {"attended_share": 0.58}."""
        if "diagnostics" in self.summary:
            return dict(self.summary["diagnostics"])
        return {name: sum(values) / len(values) for name, values in self.layers.items()}

    @cached_property
    def _heads_file(self) -> tuple[dict, list[str]]:
        problems: list[str] = []
        return _read_json(self.path / "heads.json", problems) or {}, problems

    @property
    def _head_splits(self) -> dict[str, dict]:
        splits = self._heads_file[0].get("splits")
        items = splits.items() if isinstance(splits, dict) else ()
        return {split: values for split, values in items if isinstance(values, dict)}

    @property
    def _from_name(self) -> dict:
        match = DIRECTORY_NAME.fullmatch(self.path.name)
        parts: dict = match.groupdict() if match else {}
        if match:
            parts["seed"] = int(match["seed"])
        return {"experiment": self.path.parent.name, **parts}

    @cached_property
    def _metrics(self) -> tuple[list[dict], list[str]]:
        if "evaluations" in self.summary:
            return list(self.summary["evaluations"]), []
        rows, problems = _read_rows(self.path / "metrics.jsonl")
        logged = self.summary.get("logged_rows")
        if isinstance(logged, int) and logged > len(rows) and not problems:
            problems = [f"metrics.jsonl is damaged: it has {len(rows)} of {logged} rows"]
        return rows, problems

    @property
    def metrics(self) -> list[dict]:
        """Rows of metrics.jsonl in file order, read on first use: a long run has 50,000. A collected row has only
        evaluations."""
        return self._metrics[0]

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; null (how JSON writes a number that is not finite) becomes NaN."""
        rows = [row for row in self.metrics if key in row and isinstance(row.get("step"), int)]
        return [row["step"] for row in rows], [number(row[key]) for row in rows]

    def remarks(self) -> list[str]:
        """Everything a reader must know before trusting this run, in plain sentences."""
        remarks = [*self.problems, *self._metrics[1], *self._heads_file[1], *self._config_file[1]]
        error = self.status.get("error")
        if error:
            remarks.append(str(error))
        if not self.completed and self.status.get("step") is not None:
            remarks.append(f"last step {self.status['step']} of {self.status.get('steps', 'unknown')}")
        if self.state == "running" and self.status.get("updated"):
            remarks.append(f"last sign of life {self.status['updated']}")
        return remarks


def number(value) -> float:
    """A float, or NaN for what is not a number, or an integer beyond all floats."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    except OverflowError:
        return float("nan")


def _head_numbers(values: dict) -> dict[str, float]:
    means, spreads = (values[kind] if isinstance(values.get(kind), dict) else {} for kind in ("mean", "sd"))
    spread = _head_means(spreads).get("head_distance")
    return _head_means(means) | ({} if spread is None else {"head_distance_sd": spread})


def _head_means(values: dict) -> dict[str, float]:
    """The numbers; those that were not measured are left out."""
    return {key: number(value) for key, value in values.items() if value is not None}


def read_run(path: Path) -> Run:
    """Reads one run directory. Never raises for what is in it: its state and problems say what is wrong with it."""
    problems: list[str] = []
    status = _read_json(path / "status.json", problems)
    summary = _read_json(path / "summary.json", problems)
    if summary is not None and summary.get("schema") != SCHEMA:
        problems.append(f"summary.json has schema {summary.get('schema')!r}, this version reads {SCHEMA}")
        summary = None
    summary = _well_typed("summary.json", summary or {}, problems)
    if status is not None and "state" in status and status["state"] not in STATES:
        problems.append(f"status.json has the state {status['state']!r}, which no run has")
    damaged = bool(problems)
    # without meta.json the numbers still stand, only their origin is unknown
    meta = _well_typed("meta.json", _read_json(path / "meta.json", problems) or {}, problems)
    if status is not None and status.get("state") == "completed" and summary is None and not damaged:
        problems.append("status.json says completed, but there is no summary.json")
        damaged = True
    return Run(path, _state(path, status, summary, damaged), status or {}, summary or {}, meta or {}, tuple(problems))


def _well_typed(name: str, values: dict, problems: list[str]) -> dict | None:
    """The values of a file; None without any, and where one is of another type than a run writes, which is named."""
    for key in TYPES.keys() & values.keys():
        if not has_type(values[key], TYPES[key]):
            problems.append(f"{name} is damaged: {key}={values[key]!r}"[:200])
            return None
    return values or None


def _state(path: Path, status: dict | None, summary: dict | None, damaged: bool) -> str:
    if SET_ASIDE.search(path.name):
        return "set aside"
    if damaged:
        return "damaged"
    if status is None or "state" not in status:
        return "completed" if summary is not None else "unfinished"
    return str(status["state"])


def _read_json(path: Path, problems: list[str]) -> dict | None:
    """The object in `path`; None if the file is not there, None and a named problem if it is no use."""
    try:
        return json_object(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return None


def _read_rows(path: Path) -> tuple[list[dict], list[str]]:
    """The rows of a metrics file, and a remark on lines that are damaged (a kill while writing leaves half a line)."""
    try:
        require_small(path, LARGEST)
        data = path.read_bytes()
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"]
    lines = read_lines(data)
    lost = len(lines.damaged) + (not data.endswith(b"\n") and bool(data))
    return lines.rows, [f"{path.name}: {lost} damaged line{'s' if lost > 1 else ''} left out"] if lost else []

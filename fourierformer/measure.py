"""Final measurements of a run: every split under every protocol, each kept as soon as it is known."""

import json
from pathlib import Path

from fourierformer.rundir import atomic_write_text, read_json
from fourierformer.tasks.base import Poll, Watch


class Measurements:
    """evaluation.json: {"step": 600, "results": {"valid": {"sliding": {...}}}}. Another checkpoint's numbers are dropped."""

    def __init__(self, path: Path, step: int):
        self.path, self.step = path, step
        stored = read_json(path) or {}
        self.results: dict[str, dict[str, dict]] = stored.get("results", {}) if stored.get("step") == step else {}

    def add(self, split: str, protocol: str, numbers: dict) -> None:
        self.results.setdefault(split, {})[protocol] = numbers
        atomic_write_text(self.path, json.dumps({"step": self.step, "results": self.results}, indent=2) + "\n")


def measure_all(task, model, evaluation: dict, measurements: Measurements, poll: Poll, watch: Watch) -> None:
    for split in evaluation["splits"]:
        for protocol in evaluation["protocols"]:
            if protocol not in measurements.results.get(split, {}):
                measurements.add(split, protocol, task.measure(model, split, protocol, poll, watch))

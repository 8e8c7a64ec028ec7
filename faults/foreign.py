"""Files that somebody else has made, with checksums that fit them: read by every script, and loaded."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml

from faults.children import Ended, in_child, limit_memory
from faults.crafted import CRAFTED, seal
from faults.damage import BYTES, KINDS, file_of
from faults.guard import ESCAPES, SCRIPTS, ended_by, judged, make_outside
from faults.settings import Bench
from faults.trials import ACCEPTED, NAMED, REFUSED, SAME, SILENT, Trial, Verdict, seeded
from fourierformer.config import config_hash, from_yaml
from fourierformer.files import CHECKSUM, checksum
from fourierformer.tracking.jsonl import JsonlTracker, read_lines

# what a changed value may be; {outside} is a folder that no command has to do with
VALUES: tuple = (
    *(None, True, -1, 0, 7, 2**63, 10**30, 1e308, math.nan, -0.5, "", "text", "7", "a" * 5000, "\ud800", "\0", ESCAPES),
    *([], {}, [[]], [1, "a", None], {"a": {"b": []}}, ["x"] * 3, "${oc.env:HF_TOKEN}", "${seed}", "<script>alert(1)"),
    *("=1+1", "--output={outside}/file", "{outside}/file", "../../outside/file", "4" * 40),
)


def foreign_json(run: Path, draw: random.Random, outside: Path) -> str:
    path = draw.choice(sorted(run.glob("*.json")))
    values = json.loads(path.read_text())
    values.pop(CHECKSUM, None)
    what = change(values, draw, outside)
    path.write_text(json.dumps(values | {CHECKSUM: checksum(values)}))
    return f"{path.name}: {what}"


def foreign_config(run: Path, draw: random.Random, outside: Path) -> str:
    """With the hash of the changed config in every file that has one."""
    values = from_yaml(run / "config.yaml")
    what = change(values, draw, outside)
    try:
        text = yaml.safe_dump(values, allow_unicode=True)
        text.encode()
    except ValueError:
        text = yaml.safe_dump(values)
    (run / "config.yaml").write_text(text)
    for name in ("meta.json", "summary.json"):
        if (run / name).is_file():
            stored = json.loads((run / name).read_text()) | {"config_hash": config_hash(values)}
            stored.pop(CHECKSUM, None)
            (run / name).write_text(json.dumps(stored | {CHECKSUM: checksum(stored)}))
    for checkpoint in run.glob("checkpoints/step_*"):
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        torch.save(state | {"config_hash": config_hash(values)}, checkpoint / "state.pt")
        seal(checkpoint)
    return f"config.yaml: {what}"


def foreign_log(run: Path, draw: random.Random, outside: Path) -> str:
    """Rows of metrics.jsonl, written as the tracker writes them."""
    path = run / "metrics.jsonl"
    rows = read_lines(path.read_bytes()).rows
    what = change(rows, draw, outside)
    path.unlink()
    tracker = JsonlTracker(path)
    for row in rows:
        if isinstance(row, dict):
            tracker.log(row)
    tracker.close(0)
    return f"metrics.jsonl: {what}"


def foreign_manifest(run: Path, draw: random.Random, outside: Path) -> str:
    path = draw.choice(sorted(run.glob("checkpoints/*/MANIFEST.json")))
    values = json.loads(path.read_text())
    what = change(values, draw, outside)
    path.write_text(json.dumps(values))
    return f"{path.parent.name}: {what}"


def foreign_state(run: Path, draw: random.Random, outside: Path) -> str:
    kind = draw.choice(sorted(CRAFTED))
    for checkpoint in run.glob("checkpoints/step_*"):
        CRAFTED[kind](checkpoint / "state.pt", outside / "code ran", draw)
        seal(checkpoint)
    return kind


def change(values: dict | list, draw: random.Random, outside: Path) -> str:
    """Replace one value, at any depth."""
    if not values:
        return "nothing"
    key = draw.choice(sorted(values)) if isinstance(values, dict) else draw.randrange(len(values))
    inner = values[key]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
        return f"{key}.{change(inner, draw, outside)}"
    new = draw.choice(VALUES)
    values[key] = new.replace("{outside}", str(outside)) if isinstance(new, str) else new
    return f"{key}={new!a}"


FOREIGN = (foreign_json, foreign_json, foreign_config, foreign_config, foreign_log, foreign_manifest, foreign_state)


def read_by_scripts(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A finished run with a changed file, in turn with fitting checksums and without; then one of the scripts."""
    draw = seeded(seed, "scripts", name)
    while True:
        script, chosen = draw.choice(sorted(SCRIPTS)), draw.randrange(2**32)
        harm = draw.choice(FOREIGN) if draw.random() < 0.5 else draw.choice((*BYTES, *KINDS))
        family = "foreign values with valid checksums" if harm in FOREIGN else "damaged file of a finished run"
        action = _script_on(bench, name, script, harm, chosen)
        yield Trial(f"{family}, then a script", script, f"{name}: {harm.__name__}, seed {chosen}", action)


def _script_on(bench: Bench, name: str, script: str, harm: Callable, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        expected, draw, outside = _printed(bench, name, script), random.Random(chosen), make_outside(folder)
        run = bench.copied(name, folder / "runs")
        if harm in FOREIGN:
            harm(run, draw, outside)
        else:
            names = [path.name for path in run.iterdir() if path.is_file()]
            harm(file_of(run, draw.choice([*sorted(names), "MANIFEST.json", "state.pt"]), draw), draw)
        ended = ended_by(folder, script, run)
        if bad := judged(ended, folder, outside):
            return bad
        if ended.code:
            return Verdict(REFUSED)
        if harm in FOREIGN:
            return Verdict(ACCEPTED)
        if _words(ended, folder) == expected:
            return Verdict(SAME)
        named = re.search(r"damaged|match|cannot be read|left out|unfinished|missing|no plain file", ended.text)
        return Verdict(NAMED) if named else Verdict(SILENT, f"{expected}\n{ended.text[-4000:]}")

    return action


def _printed(bench: Bench, name: str, script: str) -> str:
    """What a script prints about the undisturbed run."""
    key = f"{script} of {name}"
    if key not in bench.shown:
        folder = bench.folder / key.replace(" ", "-")
        ended = ended_by(folder, script, bench.copied(name, folder / "runs"))
        bench.shown[key] = [_words(ended, folder)]
    return bench.shown[key][0]


def _words(ended: Ended, folder: Path) -> str:
    """The output without the folder of the trial, and without the widths that depend on its name."""
    return re.sub(r"\s+|-{3,}", " ", ended.output.replace(str(folder), ""))


def foreign_exports(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """An exported model whose config.json or data.json was changed, or which was damaged; then from_pretrained."""
    draw = seeded(seed, "exports", name)
    while True:
        target, chosen = draw.choice(("config.json", "data.json", "model.safetensors")), draw.randrange(2**32)
        yield Trial(
            "foreign or damaged export, then loaded",
            target,
            f"{name}: seed {chosen}",
            _loaded(bench, name, target, chosen),
        )


def _loaded(bench: Bench, name: str, target: str, chosen: int) -> Callable[[Path], Verdict]:
    def load(folder: Path) -> int:
        import fourierformer
        from fourierformer.runs.console_io import exit_on_user_error

        limit_memory()
        try:
            with exit_on_user_error():
                fourierformer.from_pretrained(folder, "cpu")
        except SystemExit as end:
            return int(end.code)  # type: ignore[arg-type]
        return 0

    def action(folder: Path) -> Verdict:
        draw, outside = random.Random(chosen), make_outside(folder)
        ended = ended_by(folder, "export", bench.copied(name, folder / "runs"))
        if ended.code:
            return Verdict(REFUSED)  # of a task that is not exported
        path = folder / "out" / "model" / target
        if target.endswith(".json") and draw.random() < 0.7:
            values = json.loads(path.read_text())
            change(values, draw, outside)
            path.write_text(json.dumps(values))
        else:
            draw.choice((*BYTES, *KINDS))(path, draw)
        ended = in_child(lambda: load(path.parent))
        return judged(ended, folder, outside) or Verdict(REFUSED if ended.code else ACCEPTED)

    return action

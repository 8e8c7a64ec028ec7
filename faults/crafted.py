"""Checkpoints that somebody else has made, with manifests that fit them."""

import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from faults.settings import Bench
from faults.trials import REFUSED, SILENT, Trial, Verdict, compared, crashed, seeded


def crafted_checkpoints(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A state that somebody else has made, with a manifest that fits it: no code of it runs, no traceback."""
    draw = seeded(seed, "crafted", name)
    while True:
        kind, chosen = draw.choice(sorted(CRAFTED)), draw.randrange(2**32)
        yield Trial(
            "crafted checkpoint, then resumed", name, f"{kind}, seed {chosen}", _crafted(bench, name, kind, chosen)
        )


def _crafted(bench: Bench, name: str, kind: str, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        root = folder / "runs"
        run, mark = bench.copied(name, root, unfinished=True), folder / "code ran"
        for checkpoint in run.glob("checkpoints/step_*"):
            CRAFTED[kind](checkpoint / "state.pt", mark, random.Random(chosen))
            seal(checkpoint)
        ended = bench.run(bench.settings[name], root)
        if mark.exists():
            return Verdict(SILENT, "code of the checkpoint ran")
        if bad := crashed(ended):
            return bad
        return Verdict(REFUSED) if ended.code else compared(bench, bench.settings[name], root, last_only=True)

    return action


def seal(checkpoint: Path) -> None:
    """Write the size and sha256 of its state into the manifest of a checkpoint."""
    state, path = checkpoint / "state.pt", checkpoint / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    facts = {"bytes": state.stat().st_size, "sha256": hashlib.sha256(state.read_bytes()).hexdigest()}
    manifest["files"]["state.pt"] = facts
    path.write_text(json.dumps(manifest))


class _Touch:
    """Unpickled without care, this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _evil(state: Path, mark: Path, draw: random.Random) -> None:
    torch.save({"model": _Touch(mark)}, state)


def _plain_pickle(state: Path, mark: Path, draw: random.Random) -> None:
    state.write_bytes(pickle.dumps({"model": _Touch(mark)}))


def _changed(change: Callable) -> Callable:
    def craft(state: Path, mark: Path, draw: random.Random) -> None:
        content = torch.load(state, weights_only=True)
        torch.save(change(content, draw) or content, state)

    return craft


def _without_a_part(content: dict, draw: random.Random) -> None:
    content.pop(draw.choice(sorted(content)))


def _part_of_another_type(content: dict, draw: random.Random) -> None:
    content[draw.choice(sorted(set(content) - {"ema", "scaler"}))] = draw.choice([7, "text", [], None, {"a": 1}])


def _other_shapes(content: dict, draw: random.Random) -> None:
    name = draw.choice(sorted(content["model"]))
    content["model"][name] = content["model"][name].new_zeros(3, 3, 3)


def _a_list(content: dict, draw: random.Random) -> list:
    return [content]


def _noise(state: Path, mark: Path, draw: random.Random) -> None:
    state.write_bytes(draw.randbytes(5000))


CRAFTED = {
    "a pickle with code": _plain_pickle,
    "an archive with code": _evil,
    "a part is missing": _changed(_without_a_part),
    "a part of another type": _changed(_part_of_another_type),
    "weights of other shapes": _changed(_other_shapes),
    "a list": _changed(_a_list),
    "noise": _noise,
}

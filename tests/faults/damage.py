"""Files that are damaged: a bit flipped, cut, emptied, of another kind, in place of a folder; then trained or read."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import in_child
from faults.settings import Bench, read_by_programs
from faults.trials import NAMED, REFUSED, SAME, SILENT, Trial, Verdict, compared, crashed, resumed, seeded

RUN_FILES = ("config.yaml", "meta.json", "metrics.jsonl", "status.json", "summary.json", "evaluation.json")
CHECKPOINT_FILES = ("MANIFEST.json", "state.pt")
PREPARED_FILES = ("manifest.json", "train.bin", "valid.bin", "test.bin", "vocabulary.txt")


def flip(path: Path, draw: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name} flipped"


def cut(path: Path, draw: random.Random) -> str:
    length = draw.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"{path.name} cut to {length} bytes"


def empty(path: Path, draw: random.Random) -> str:
    os.truncate(path, 0)
    return f"{path.name} emptied"


def zeroed(path: Path, draw: random.Random) -> str:
    """What a lost write leaves after a power failure."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)
    return f"512 bytes of {path.name} from {start} on are 0"


def missing(path: Path, draw: random.Random) -> str:
    path.unlink()
    return f"{path.name} is missing"


def folder_instead(path: Path, draw: random.Random) -> str:
    path.unlink()
    (path / "inside").mkdir(parents=True)
    return f"{path.name} is a folder"


def link_loop(path: Path, draw: random.Random) -> str:
    path.unlink()
    path.symlink_to(path.name)
    return f"{path.name} is a link to itself"


def pipe_instead(path: Path, draw: random.Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return f"{path.name} is a pipe that nobody writes to"


def other_json(path: Path, draw: random.Random) -> str:
    text = draw.choice(["[]", "7", "null", '"text"', "{}", '{"state": 7, "steps": "7", "results": [], "splits": 3}'])
    path.write_text(text + "\n")
    return f"{path.name} is {text}"


BYTES = (flip, flip, flip, flip, cut, cut, zeroed, empty)
KINDS = (missing, folder_instead, link_loop, pipe_instead, other_json)


def damaged_and_resumed(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of a run that was killed after step 4; then the same command."""
    draw = seeded(seed, "resumed", name)
    while True:
        target = draw.choice((*RUN_FILES[:4], *CHECKPOINT_FILES, *CHECKPOINT_FILES))
        harm, chosen = draw.choice((*BYTES, *KINDS)), draw.randrange(2**32)
        yield Trial(
            "damaged file of an unfinished run, then resumed",
            target,
            f"{name}: {harm.__name__}, seed {chosen}",
            _resume_damaged(bench, name, target, harm, chosen),
        )


def _resume_damaged(bench: Bench, name: str, target: str, harm: Callable, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        root = folder / "runs"
        run = bench.copied(name, root, unfinished=True)
        harm(_file(run, target, random.Random(chosen)), random.Random(chosen))
        return resumed(bench, bench.settings[name], root)

    return action


def _file(run: Path, target: str, draw: random.Random) -> Path:
    return draw.choice(sorted(run.glob(f"checkpoints/*/{target}"))) if target in CHECKPOINT_FILES else run / target


def damaged_and_read(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of a finished run; then tables, the page, the state of the sweep and the same command are asked."""
    draw = seeded(seed, "read", name)
    while True:
        target = draw.choice(RUN_FILES[:5])
        harm, chosen = draw.choice((*BYTES, *KINDS)), draw.randrange(2**32)
        yield Trial(
            "damaged file of a finished run, then read",
            target,
            f"{name}: {harm.__name__}, seed {chosen}",
            _read_damaged(bench, name, target, harm, chosen),
        )


def _read_damaged(bench: Bench, name: str, target: str, harm: Callable, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        root = folder / "runs"
        run = bench.copied(name, root)
        draw = random.Random(chosen)
        expected = numbers_shown(in_child(lambda: read_by_programs(root, page=False)).output)
        harm(run / target, draw)
        with_page = draw.random() < 0.1  # it takes ten times as long as the rest
        ended = in_child(lambda: read_by_programs(root, with_page))
        if bad := crashed(ended):
            return bad
        shown = numbers_shown(ended.output)
        if shown == expected:
            return Verdict(SAME)
        if _nothing_else(shown, expected):
            return Verdict(NAMED)
        named = re.search(r"damaged|does not match|cannot be read|left out|unfinished", ended.text)
        return Verdict(NAMED) if named else Verdict(SILENT, f"{expected}\n{shown}\n{ended.text[-4000:]}")

    return action


def _nothing_else(shown: list[str], expected: list[str]) -> bool:
    """Whether every word shown is the expected one, or a dash in place of what is not known."""
    pairs = list(zip(" ".join(shown).split(), " ".join(expected).split(), strict=False))
    return len(shown) == len(expected) and all(one in (other, "-") for one, other in pairs)


def numbers_shown(text: str) -> list[str]:
    """The line of the run in the table, and its state, without times."""
    return [re.sub(r"\s+", " ", line) for line in text.splitlines() if re.match(r"\s*(softmax|completed) ", line)]


def damaged_prepared_data(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of the prepared text; then a training. The folder is named in the message, deleted, and made again."""
    draw = seeded(seed, "prepared", name)
    while True:
        target, harm = draw.choice(PREPARED_FILES), draw.choice((*BYTES, missing, folder_instead, link_loop))
        chosen = draw.randrange(2**32)
        yield Trial(
            "damaged file of prepared data, then trained",
            target,
            f"{harm.__name__}, seed {chosen}",
            _train_on_damaged(bench, name, target, harm, chosen),
        )


def _train_on_damaged(bench: Bench, name: str, target: str, harm: Callable, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, cache, root = bench.settings[name], folder / "cache", folder / "runs"
        shutil.copytree(bench.folder / "cache", cache)
        harm(next(cache.glob(f"*/{target}")), random.Random(chosen))
        ended = bench.run(setting, root, f"data.cache={cache}")
        if bad := crashed(ended):
            return bad
        if ended.code == 0:
            return compared(bench, setting, root)
        return Verdict(REFUSED) if str(cache) in ended.text else Verdict(SILENT, ended.text[-3000:])

    return action


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
        import hashlib

        root = folder / "runs"
        run, mark = bench.copied(name, root, unfinished=True), folder / "code ran"
        for checkpoint in run.glob("checkpoints/step_*"):
            state = checkpoint / "state.pt"
            CRAFTED[kind](state, mark, random.Random(chosen))
            manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
            facts = {"bytes": state.stat().st_size, "sha256": hashlib.sha256(state.read_bytes()).hexdigest()}
            manifest["files"]["state.pt"] = facts
            (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest))
        ended = bench.run(bench.settings[name], root)
        if mark.exists():
            return Verdict(SILENT, "code of the checkpoint ran")
        if bad := crashed(ended):
            return bad
        return Verdict(REFUSED) if ended.code else compared(bench, bench.settings[name], root)

    return action


class _Touch:
    """Unpickled without care, this makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _evil(state: Path, mark: Path, draw: random.Random) -> None:
    import torch

    torch.save({"model": _Touch(mark)}, state)


def _plain_pickle(state: Path, mark: Path, draw: random.Random) -> None:
    import pickle

    state.write_bytes(pickle.dumps({"model": _Touch(mark)}))


def _changed(change: Callable) -> Callable:
    def craft(state: Path, mark: Path, draw: random.Random) -> None:
        import torch

        content = torch.load(state, weights_only=True)
        content = change(content, draw) or content
        torch.save(content, state)

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

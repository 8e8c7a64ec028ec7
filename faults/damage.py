"""Files that are damaged: a bit flipped, cut, emptied, of another kind, in place of a folder; then trained or read."""

import os
import random
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import in_child
from faults.settings import Bench, read_by_programs
from faults.trials import NAMED, REFUSED, SAME, SILENT, Trial, Verdict, compared, crashed, resumed, seeded

RUN_FILES = ("config.yaml", "data.json", "meta.json", "metrics.jsonl", "status.json")
CHECKPOINT_FILES = ("MANIFEST.json", "state.pt")
HOLE = 2**35 + 2**33  # 40 GiB
PREPARED_FILES = ("manifest.json", "train.bin", "valid.bin", "test.bin", "vocabulary.txt")


def flip(path: Path, draw: random.Random) -> str:
    content = bytearray(path.read_bytes() or b"\0")  # of an empty file, such as a lock
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name} flipped"


def cut(path: Path, draw: random.Random) -> str:
    length = draw.randrange(max(1, path.stat().st_size))  # a lock is empty
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


def socket_instead(path: Path, draw: random.Random) -> str:
    path.unlink()
    listen(path)
    return f"{path.name} is a socket"


def listen(path: Path) -> None:
    """Make a socket; under a short name first, since a path in a socket's address has at most 107 bytes."""
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{handle}/.socket")
    finally:
        os.close(handle)
    os.rename(path.parent / ".socket", path)


def sparse(path: Path, draw: random.Random) -> str:
    """A file of one hole, larger than the memory, that takes no space."""
    os.truncate(path, HOLE)
    return f"{path.name} has {HOLE} bytes"


def sparse_zeros(path: Path, draw: random.Random) -> str:
    os.truncate(path, 0)
    return sparse(path, draw)


def other_json(path: Path, draw: random.Random) -> str:
    text = draw.choice(["[]", "7", "null", '"text"', "{}", '{"state": 7, "steps": "7", "results": [], "splits": 3}'])
    path.write_text(text + "\n")
    return f"{path.name} is {text}"


BYTES = (flip, flip, flip, flip, cut, cut, zeroed, empty)
KINDS = (missing, folder_instead, link_loop, pipe_instead, socket_instead, sparse, sparse_zeros, other_json)


def damaged_and_resumed(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of a run that was killed after step 4; then the same command."""
    draw = seeded(seed, "resumed", name)
    while True:
        target = draw.choice((*RUN_FILES, *CHECKPOINT_FILES, *CHECKPOINT_FILES))
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
        harm(file_of(run, target, random.Random(chosen)), random.Random(chosen))
        return resumed(bench, bench.settings[name], root, may_refuse=True)

    return action


def file_of(run: Path, target: str, draw: random.Random) -> Path:
    found = sorted(run.glob(f"checkpoints/*/{target}"))
    return draw.choice(found) if found else run / target


def damaged_and_read(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of a finished run; then tables, the page, the state of the sweep and the same command are asked."""
    draw = seeded(seed, "read", name)
    while True:
        target = draw.choice((*RUN_FILES, "summary.json"))
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
        expected = _shown_of_undisturbed(bench, name)
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


def _shown_of_undisturbed(bench: Bench, name: str) -> list[str]:
    if name not in bench.shown:
        root = bench.undisturbed(name)[0]
        bench.shown[name] = numbers_shown(in_child(lambda: read_by_programs(root, page=False)).output)
    return bench.shown[name]


def _nothing_else(shown: list[str], expected: list[str]) -> bool:
    """Whether every word shown is the expected one, or a dash in place of what is not known."""
    pairs = list(zip(" ".join(shown).split(), " ".join(expected).split(), strict=False))
    return len(shown) == len(expected) and all(one in (other, "-") for one, other in pairs)


def numbers_shown(text: str) -> list[str]:
    """The line of the run in the table, and its state, without the folder that it lies in."""
    lines = [line for line in text.splitlines() if re.match(r"\s*(softmax|completed) ", line)]
    return [re.sub(r"\s+", " ", re.sub(r"/\S*/", "", line)) for line in lines]


def damaged_prepared_data(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A file of the prepared text; then a training. The folder is named in the message, deleted, and made again."""
    draw = seeded(seed, "prepared", name)
    while True:
        target, harm = draw.choice(PREPARED_FILES), draw.choice((*BYTES, *KINDS))
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

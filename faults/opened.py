"""Files of data and checkpoints that are damaged and then opened, without a training around it: a twentieth of a second
each, so that hundreds of bits can be flipped."""

import io
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from faults.children import in_child, limit_memory
from faults.damage import cut, empty, flip, pipe_instead, socket_instead, sparse, zeroed
from faults.settings import Bench, state_hash
from faults.trials import NAMED, REFUSED, SAME, SILENT, Trial, Verdict, crashed, seeded
from fourierformer.data.images.corpus import load_images
from fourierformer.data.images.sets import Unreadable
from fourierformer.data.text.corpus import load_corpus
from fourierformer.data.text.spec import TextData
from fourierformer.errors import UserError
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.image_cases import CLASSES, image_data, tar_of

EACH = 150  # trials of each target, so that they do not outnumber everything else
HARMS = (flip, flip, flip, cut, zeroed, empty)
KINDS = (cut, pipe_instead, socket_instead, sparse)


def opened(bench: Bench, seed: str) -> Iterator[Trial]:
    """Of each target in turn, each of EACH times from the same undamaged files."""
    draw = seeded(seed, "opened")
    sources = {target: make(bench.folder / target.replace(" ", "-")) for target, make in targets(bench).items()}
    for _ in range(EACH):
        for target, (folder, names, read) in sources.items():
            chosen = draw.randrange(2**32)
            images = target in ("tar of images", "folder of images")
            harms = KINDS if images else (*HARMS, *KINDS)  # a flipped pixel is another image
            fault = f"{draw.choice(names)}, seed {chosen}"
            action = _open_damaged(folder, fault.split(",")[0], harms, chosen, read)
            yield Trial("damaged data or checkpoint, then opened", target, fault, action)


def _open_damaged(
    folder: Path, name: str, harms: tuple, chosen: int, read: Callable[[Path], object]
) -> Callable[[Path], Verdict]:
    def action(place: Path) -> Verdict:
        draw, copy = random.Random(chosen), place / "copy"
        shutil.copytree(folder, copy)
        expected = read(copy)
        done = draw.choice(harms)(draw.choice(sorted(copy.glob(name))), draw)

        def read_again() -> str:
            limit_memory()
            try:
                return SAME if read(copy) == expected else SILENT
            except UserError:
                return REFUSED

        ended = in_child(read_again, seconds=20)
        named = ended.value == SILENT and "damaged: " in ended.output
        return crashed(ended) or Verdict(NAMED if named else str(ended.value), done)

    return action


def targets(bench: Bench) -> dict[str, Callable[[Path], tuple[Path, tuple[str, ...], Callable[[Path], object]]]]:
    """What is opened: makes the files in a folder, and says which of them are damaged and how they are read."""
    return {
        "tar of images": lambda folder: (_tars(folder), ("train.tar", "val.tar"), _images),
        "folder of images": lambda folder: (_unpacked(folder), ("*/*/*.png",), _images),
        "index of a tar": lambda folder: (_indexed(folder), ("cache/*.npz",), _images),
        "prepared text": lambda folder: (_prepared(bench, folder), ("cache/*/*",), _text),
        "checkpoint": lambda folder: (_checkpoint(bench, folder), ("step_*/*",), _newest),
    }


def _tars(folder: Path) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        members = {}
        for number in range(6):
            buffer = io.BytesIO()
            Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(buffer, "PNG")
            members[f"{split}/{CLASSES[number % 3]}/{number}.png"] = buffer.getvalue()
        (folder / f"{split}.tar").write_bytes(tar_of(members))
    return folder


def _unpacked(folder: Path) -> Path:
    for archive in _tars(folder).glob("*.tar"):
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        archive.unlink()
    return folder


def _indexed(folder: Path) -> Path:
    _images(_tars(folder))
    return folder


def _images(folder: Path) -> list[tuple[bytes, int]]:
    """Also makes the index, where there is none."""
    corpus = load_images(image_data("imagenet", root=str(folder), cache=str(folder / "cache"), expect=None))
    read = []
    for images in corpus.splits.values():
        for number in range(len(images)):
            try:
                read.append((images.pixels(number).tobytes(), int(images.labels[number])))
            except Unreadable as error:  # a training counts and names it
                print(f"damaged: {error}")
    return read


def _prepared(bench: Bench, folder: Path) -> Path:
    shutil.copytree(bench.folder / "text", folder / "text")
    _text(folder)
    return folder


def _text(folder: Path) -> tuple:
    corpus = load_corpus(TextData(name="mine", root=str(folder / "text"), cache=str(folder / "cache")))
    return corpus.words, [tokens.tobytes() for tokens in corpus.splits.values()], corpus.notes


def _checkpoint(bench: Bench, folder: Path) -> Path:
    run = next(bench.undisturbed("language")[0].rglob("checkpoints"))
    shutil.copytree(sorted(run.glob("step_*"))[-1], folder / "step_00000006")
    return folder


def _newest(folder: Path) -> object:
    found = Checkpoints(folder, say=lambda message: None).latest()
    return found and (found[0], state_hash(folder / "step_00000006" / "state.pt"))

"""A split of an image data set as random access: `read(index)` gives an RGB image and its class.

Loader processes are forked from a process that holds the split. Reference counting alone would copy a million Python
strings into each of them, so names are one block of bytes and labels one array.
"""

import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from fourierformer.errors import SetupError

SAMPLED = 64  # images of a split whose bytes are in its fingerprint: to read all of ImageNet takes minutes
MOST_CLASSES = 2**20  # a larger label is a damaged one: ImageNet-21k has 21,841
EXTENSIONS = frozenset((".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"))


class Unreadable(Exception):
    """An image cannot be decoded; the caller decides what to use instead."""

    def __init__(self, index: int, name: str, reason: str):
        super().__init__(index, name, reason)
        self.index, self.name, self.reason = index, name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class ImageSet(ABC):
    """Images with labels; `classes` is empty where the labels have no names."""

    levels = 256  # values that one channel of a pixel can have

    def __init__(self, labels: np.ndarray, classes: list[str]):
        self.labels, self.classes = labels, classes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name_of(self, index: int) -> str:
        """The name of the image in messages."""

    @abstractmethod
    def open(self, index: int) -> BinaryIO | str | Image.Image:
        """The image, or the file or path of its encoded form."""

    def read(self, index: int) -> tuple[Image.Image, int]:
        """The decoded image and its label; raises Unreadable."""
        try:
            image = self.open(index)
            if not isinstance(image, Image.Image):
                with Image.open(image) as encoded:
                    image = to_rgb(encoded)
        except Exception as error:  # damaged files make decoders raise anything from SyntaxError to struct.error
            raise Unreadable(index, self.name_of(index), f"{type(error).__name__}: {error}") from error
        return image, int(self.labels[index])

    def add_to(self, digest) -> None:
        """Adds to a hash what tells this set from another: all labels, and SAMPLED images spread evenly over it."""
        digest.update(self.labels.astype("<i8").tobytes())
        for index in np.linspace(0, len(self) - 1, min(SAMPLED, len(self)), dtype=int).tolist():
            digest.update(hashlib.sha256(self.content(index)).digest())

    def content(self, index: int) -> bytes:
        """The bytes of an image as it is stored; none where they cannot be read, which `read` reports."""
        try:
            image = self.open(index)
            if isinstance(image, Image.Image):
                return image.tobytes()
            return Path(image).read_bytes() if isinstance(image, str) else image.read()
        except Exception:  # as in `read`
            return b""

    def pixels(self, index: int) -> np.ndarray:
        """The image as integers from 0 to levels - 1, (height, width, channels)."""
        return np.asarray(self.read(index)[0])


def to_rgb(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel. Pillow's own conversion cuts 16-bit grey off at 255, which leaves it white."""
    sixteen_bits = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if sixteen_bits:
        shades = np.rint(np.asarray(image) / 257).astype(np.uint8)  # 65535 = 255 * 257
        return Image.fromarray(shades).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("32 bits per pixel, whose range is not known: convert it to 8 or 16 bits")
    return image.convert("RGB")


def checked_labels(labels: np.ndarray, origin: str) -> np.ndarray:
    """The labels as int32. SetupError for one that cannot be the number of a class."""
    labels = np.asarray(labels)
    for wrong in labels[(labels < 0) | (labels >= MOST_CLASSES)][:1].tolist():
        raise SetupError(f"{origin}: a label is {wrong:,}, but classes are numbered from 0, {MOST_CLASSES:,} at most")
    return labels.astype(np.int32)


class Names:
    """A list of strings as one block of bytes."""

    def __init__(self, block: np.ndarray, ends: np.ndarray):
        self.block, self.ends = block, ends

    @classmethod
    def pack(cls, names: Iterable[str]) -> "Names":
        block, ends = bytearray(), []
        for name in names:
            block += os.fsencode(name)
            ends.append(len(block))
        return cls(np.frombuffer(bytes(block), np.uint8), np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return os.fsdecode(self.block[start : self.ends[index]].tobytes())


class FolderSet(ImageSet):
    """Images in class folders, folder/<class>/**/<image>: classes and paths are sorted."""

    def __init__(self, folder: Path):
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        counts: list[int] = []
        self.folder = folder
        self.names = Names.pack(self._walk(classes, counts))
        empty = [name for name, count in zip(classes, counts, strict=True) if not count]
        if empty:
            raise SetupError(f"{folder} has class folders without images: {listed(empty)}. Add images or remove them")
        super().__init__(np.repeat(np.arange(len(classes), dtype=np.int32), counts), classes)

    def _walk(self, classes: list[str], counts: list[int]) -> Iterable[str]:
        for name in classes:
            paths = sorted(
                os.path.relpath(os.path.join(parent, file), self.folder)
                for parent, _, files in self._folders(name)
                for file in files
                if os.path.splitext(file)[1].lower() in EXTENSIONS
            )
            counts.append(len(paths))
            yield from paths

    def _folders(self, name: str) -> Iterable[tuple[str, list[str], list[str]]]:
        """As os.walk, with links followed. SetupError for one that leads back: its images would be counted again and
        again."""
        for parent, folders, files in os.walk(self.folder / name, followlinks=True):
            here = os.path.realpath(parent)
            for folder in folders:
                path = os.path.join(parent, folder)
                if os.path.islink(path) and f"{here}/".startswith(f"{os.path.realpath(path)}/"):
                    raise SetupError(f"{path} is a link to a folder that it lies in: remove it")
            yield parent, folders, files

    def name_of(self, index: int) -> str:
        return os.path.join(self.folder, self.names[index])

    def open(self, index: int) -> str:
        return self.name_of(index)


class BlankSet(ImageSet):
    """Equal grey images of one size, whose classes take turns: they stand in for images that are not there."""

    def __init__(self, count: int, classes: list[str], size: int):
        super().__init__(np.arange(count, dtype=np.int32) % len(classes), classes)
        self.image = Image.new("RGB", (size, size), "grey")

    def name_of(self, index: int) -> str:
        return f"stand-in {index}"

    def open(self, index: int) -> Image.Image:
        return self.image


class ArrowSet(ImageSet):
    """Images in a memory-mapped table of `datasets`: rows with an image, as bytes or path, and a label."""

    IMAGES = ("image", "img")
    LABELS = ("label", "labels", "fine_label")

    def __init__(self, rows, origin: str):
        self.rows, self.origin = rows, origin
        self.column = self._find(self.IMAGES)
        label = self._find(self.LABELS)
        values = rows.data.column(label)
        if values.null_count or "int" not in str(values.type):
            raise SetupError(f"{origin}: column '{label}' does not hold a class number in every row")
        labels = checked_labels(values.to_numpy(), f"{origin}: column '{label}'")
        super().__init__(labels, list(getattr(rows.features[label], "names", None) or []))

    def _find(self, names: tuple[str, ...]) -> str:
        for name in names:
            if name in self.rows.column_names:
                return name
        raise SetupError(f"{self.origin} has no column {' or '.join(names)} (it has: {listed(self.rows.column_names)})")

    def name_of(self, index: int) -> str:
        return f"{self.origin} row {index}"

    def open(self, index: int) -> BinaryIO | str:
        value = self.rows.data.column(self.column)[index].as_py()  # encoded; rows[index] would decode it
        if isinstance(value, dict):
            return io.BytesIO(value["bytes"]) if value["bytes"] else value["path"]
        return io.BytesIO(value)


class DigitsSet(ImageSet):
    """scikit-learn's handwritten digits, 8 x 8 in 17 shades of grey, as 32 x 32 RGB; 1,437 to train on, 360 held out.

    The held-out ones are drawn class by class with a fixed seed, so the classes keep their shares.
    """

    SIDE = 32
    HELD_OUT = 360
    levels = 17

    def __init__(self, split: str):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        chosen = train_test_split(
            np.arange(len(digits.target)), test_size=self.HELD_OUT, stratify=digits.target, random_state=0
        )
        self.numbers = np.sort(chosen[0 if split == "train" else 1])
        self.shades = digits.images[self.numbers].astype(np.uint8)  # 0 to 16
        super().__init__(digits.target[self.numbers].astype(np.int32), [str(digit) for digit in range(10)])

    def name_of(self, index: int) -> str:
        return f"digit {self.numbers[index]}"

    def open(self, index: int) -> Image.Image:
        small = Image.fromarray(np.rint(self.shades[index] * (255 / 16)).astype(np.uint8))
        return small.resize((self.SIDE, self.SIDE), Image.Resampling.BICUBIC).convert("RGB")

    def content(self, index: int) -> bytes:
        return self.shades[index].tobytes()  # not of the enlarged image, which another Pillow may round differently

    def pixels(self, index: int) -> np.ndarray:
        """The digit as it was scanned, 8 x 8 in 17 shades."""
        return self.shades[index][..., None]


class InMemorySet(ImageSet):
    """Another set, all of it decoded before its first batch: for small images of one size.

    50,000 of 32 x 32 take 154 MB, which all loader processes share. Images that cannot be decoded stay unreadable.
    """

    def __init__(self, images: ImageSet):
        super().__init__(images.labels, images.classes)
        self.images, self.levels = images, images.levels
        self.decoded: np.ndarray | None = None
        self.unreadable: dict[int, Unreadable] = {}

    def decode(self) -> None:
        """Decodes all images, at the first call only: before loader processes begin, so that they share the pixels."""
        for index in range(len(self) if self.decoded is None else 0):
            try:
                self._keep(index, np.asarray(self.images.read(index)[0]))
            except Unreadable as error:
                self.unreadable[index] = error

    def _keep(self, index: int, pixels: np.ndarray) -> None:
        if self.decoded is None:
            self.decoded = np.empty((len(self), *pixels.shape), np.uint8)
        sizes = [f"{shape[1]} x {shape[0]}" for shape in (pixels.shape, self.decoded.shape[1:])]
        if sizes[0] != sizes[1]:
            raise SetupError(
                f"{self.name_of(index)} has {sizes[0]} pixels, images before it have {sizes[1]}: data.in_memory=true "
                "needs one size. Use data.in_memory=false"
            )
        self.decoded[index] = pixels

    def name_of(self, index: int) -> str:
        return self.images.name_of(index)

    def content(self, index: int) -> bytes:
        return self.images.content(index)

    def open(self, index: int) -> Image.Image:
        assert self.decoded is not None  # before, read() uses the original set
        return Image.fromarray(self.decoded[index])

    def read(self, index: int) -> tuple[Image.Image, int]:
        if self.decoded is None:
            return self.images.read(index)
        if index in self.unreadable:
            raise self.unreadable[index]
        return super().read(index)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")

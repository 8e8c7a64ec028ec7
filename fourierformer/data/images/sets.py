"""A split of an image data set with random access: `read(index)` returns an RGB image and its class.

Loader processes are forked from a process that holds the split. Reference counting would copy a million Python strings
into each of them, so names are one block of bytes and labels one array.
"""

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from fourierformer.errors import SetupError

OF_MACOS = re.compile(r"(^|/)(\._|__MACOSX/)")  # paths: archives of macOS have a second file ._NAME for each one
SAMPLED = 64  # images of a split whose bytes are in its fingerprint: reading all of ImageNet takes minutes
MOST_CLASSES = 2**20  # a larger label is a damaged one: ImageNet-21k has 21,841
EXTENSIONS = frozenset((".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"))


class Unreadable(Exception):
    """An image cannot be decoded; the caller chooses a replacement."""

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
        """Add the identity of this set to a hash: all labels, and SAMPLED images spread evenly over it."""
        digest.update(self.labels.astype("<i8").tobytes())
        for index in np.linspace(0, len(self) - 1, min(SAMPLED, len(self)), dtype=int).tolist():
            digest.update(hashlib.sha256(self.content(index)).digest())

    def content(self, index: int) -> bytes:
        """The stored bytes of an image; none if they cannot be read, which `read` reports."""
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
    """The image with 8 bits per channel. Pillow's own conversion clips 16-bit grey at 255, which makes it white."""
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


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")

"""Images as tokens: every channel of every pixel is a token, every image a sequence of its own.

The order is raster order with channels last: rows from the top, pixels from the left, and red, green, blue of a pixel
one after the other. An image of CIFAR-10 has 32 * 32 * 3 = 3,072 tokens of 256 values. All images must have one size.

data/images/sources.py reads them, in every form of data=cifar10 and data=imagenet. Such data has two splits: `valid`
and `test` are the same images, and a note states it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from fourierformer.data.images.digits import DigitsSet
from fourierformer.data.images.sets import ImageSet, Unreadable
from fourierformer.data.images.sources import local_files, open_splits
from fourierformer.data.images.spec import ImageData
from fourierformer.data.location import DataLocation, Say
from fourierformer.data.text.sources import SPLITS, Input, Source
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError
from fourierformer.files import file_sha256

ONE_SPLIT_NOTE = (
    "valid and test are the same images, so the best checkpoint is selected by the images that it is measured on (the "
    "last one is not: scripts/evaluate.py --checkpoint last)"
)


def local_source(data: TextData) -> Source | None:
    """The built-in digits, or the images under data.root; None where one of the splits is missing there."""
    images = _Images(data)
    if data.source == "builtin":
        return _source(data, images, images.inputs("digits"))
    files = local_files(images.spec)
    inputs = [_files_input(split, paths) for split, paths in (files or {}).items()]
    return _source(data, images, inputs) if files else None


def hub_source(data: TextData, say: Say) -> Source:
    """The images from the hub, or from the copy of them that `datasets` keeps."""
    images = _Images(data, say)
    return _source(data, images, images.inputs(str(data.hub)))


def _source(data: TextData, images: "_Images", inputs: list[Input]) -> Source:
    total = sum((data.expect or {}).get(split, 0) for split in SPLITS)
    return Source(inputs, images.pieces, total, notes=[ONE_SPLIT_NOTE], levels=images.kind.levels)


class _Images:
    """Both splits of a data set, opened when the first pixel is read, because opening parquet unpacks it."""

    def __init__(self, data: TextData, say: Say = lambda line: None):
        self.data, self.say = data, say
        self.kind: type[ImageSet] = DigitsSet if data.source == "builtin" else ImageSet

    @property
    def spec(self) -> ImageData:
        """The same location as a data set of images; its pixels are not normalised."""
        location = {field.name: getattr(self.data, field.name) for field in fields(DataLocation)}
        return ImageData(**location, mean=[0.0] * 3, std=[1.0] * 3)

    @cached_property
    def splits(self) -> dict[str, ImageSet]:
        return open_splits(self.spec, self.say)

    def pieces(self, split: str) -> Iterator[bytes]:
        """The tokens of a split, one image after the other."""
        images = self.splits["train" if split == "train" else "valid"]
        shape = self._pixels(self.splits["train"], 0).shape
        for index in range(len(images)):
            pixels = self._pixels(images, index)
            if pixels.shape != shape:
                sizes = [f"{width} x {height}" for height, width, _ in (pixels.shape, shape)]
                differ = f"{images.name_of(index)} is {sizes[0]} and the first training image {sizes[1]}"
                one_size = "as sequences of pixels all images must have one size"
                raise SetupError(f"data '{self.data.name}': {differ}: {one_size}")
            yield pixels.tobytes()

    def inputs(self, origin: str) -> list[Input]:
        """One input per split, identified by the sha256 of its pixels, for images that are no files under data.root."""
        return [Input(f"{origin} {split}", 0, 0, partial(self._digest, split)) for split in ("train", "valid")]

    def _digest(self, split: str) -> str:
        digest = hashlib.sha256()
        for piece in self.pieces(split):
            digest.update(piece)
        return digest.hexdigest()

    def _pixels(self, images: ImageSet, index: int) -> np.ndarray:
        try:
            return images.pixels(index)
        except Unreadable as error:
            raise SetupError(f"data '{self.data.name}': cannot read {error}. Copy the data again.") from error


def _files_input(split: str, paths: list[Path]) -> Input:
    """All files of a split as one input: sizes added up, the latest time, one sha256 over names and contents."""
    stats = [path.stat() for path in paths]

    def digest() -> str:
        return hashlib.sha256("".join(f"{path.name} {file_sha256(path)}\n" for path in paths).encode()).hexdigest()

    size, latest = sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
    return Input(f"{split}, {len(paths)} files", size, latest, digest)

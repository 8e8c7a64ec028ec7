"""Images in memory: another set, decoded once."""

import numpy as np
from PIL import Image

from fourierformer.data.images.sets import ImageSet, Unreadable
from fourierformer.errors import SetupError


class InMemorySet(ImageSet):
    """Another set, decoded before its first batch, for small images of one size: 50,000 of 32 x 32 take 154 MB, which
    all loader processes share. Images that cannot be decoded stay unreadable."""

    def __init__(self, images: ImageSet):
        super().__init__(images.labels, images.classes)
        self.images, self.levels = images, images.levels
        self.decoded: np.ndarray | None = None
        self.unreadable: dict[int, tuple] = {}  # arguments of the exception, which itself would keep its stack

    def decode(self) -> None:
        """Decode all images, at the first call only: before loader processes begin, so that they share the pixels."""
        for index in range(len(self) if self.decoded is None else 0):
            try:
                self._keep(index, np.asarray(self.images.read(index)[0]))
            except Unreadable as error:
                self.unreadable[index] = error.args

    def _keep(self, index: int, pixels: np.ndarray) -> None:
        if self.decoded is None:
            self.decoded = np.empty((len(self), *pixels.shape), np.uint8)
        sizes = [f"{shape[1]} x {shape[0]}" for shape in (pixels.shape, self.decoded.shape[1:])]
        if sizes[0] != sizes[1]:
            differ = f"{self.name_of(index)} has {sizes[0]} pixels, images before it have {sizes[1]}"
            raise SetupError(f"{differ}: data.in_memory=true needs one size. Use data.in_memory=false")
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
            raise Unreadable(*self.unreadable[index])
        return super().read(index)

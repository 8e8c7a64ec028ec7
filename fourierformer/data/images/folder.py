"""Images in class folders, as ImageNet is unpacked.

timm's ReaderImageFolder (1.0.31) is not used: it sorts paths in another order, so that earlier runs would resume on
other batches; it makes a class of every nested folder, silently drops a class folder without images, follows a link
that leads back, and keeps a million Python tuples that every loader process copies.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fourierformer.data.images.sets import EXTENSIONS, OF_MACOS, ImageSet, Names, listed
from fourierformer.errors import SetupError
from fourierformer.files import require_small


class FolderSet(ImageSet):
    """Images in class folders, folder/<class>/**/<image>: classes and paths are sorted."""

    def __init__(self, folder: Path):
        folders = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
        classes = sorted(name for name in folders if not OF_MACOS.search(f"{name}/"))
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
                if os.path.splitext(file)[1].lower() in EXTENSIONS and not OF_MACOS.search(file)
            )
            counts.append(len(paths))
            yield from paths

    def _folders(self, name: str) -> Iterable[tuple[str, list[str], list[str]]]:
        """os.walk with links followed. SetupError for a link that leads back, whose images would be counted again;
        OSError for a folder that cannot be read, which os.walk would leave out."""
        for parent, folders, files in os.walk(self.folder / name, onerror=_raise, followlinks=True):
            here = os.path.realpath(parent)
            for folder in folders:
                path = os.path.join(parent, folder)
                if os.path.islink(path) and f"{here}/".startswith(f"{os.path.realpath(path)}/"):
                    raise SetupError(f"{path} is a link to a folder that it lies in: remove it")
            yield parent, folders, files

    def name_of(self, index: int) -> str:
        return os.path.join(self.folder, self.names[index])

    def open(self, index: int) -> str:
        name = self.name_of(index)
        require_small(Path(name))  # a pipe or a device would be read for ever
        return name


def _raise(error: OSError) -> None:
    raise error

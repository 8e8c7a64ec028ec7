"""Images inside tar files, read without unpacking: their offsets are determined once and kept in the cache.

Three layouts are recognised: class folders (train/n01440764/x.JPEG), a tar of class tars (n01440764.tar inside
ILSVRC2012_img_train.tar), and WebDataset shards (key.jpg beside key.cls or key.json).

timm's readers (1.0.31) are not used: ReaderImageInTar takes a cut or damaged header for the end of the archive and
silently leaves out the images behind it, keeps its index beside the data and uses it after the archive has changed;
ReaderWds reads shards as a stream: batches are no function of the step, and a run cannot resume at a step.
"""

import io
import json
import os
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fourierformer.data.images.sets import EXTENSIONS, OF_MACOS, ImageSet, Names, checked_labels
from fourierformer.data.images.spec import ImageData
from fourierformer.data.location import Say
from fourierformer.errors import SetupError
from fourierformer.files import checksum, replacing, require_small

FORMAT = 3  # of an index: those of the first took nested folders for classes, of the second macOS's files for images
LABELS = (".cls", ".json")
LARGEST_INDEX = 2**33  # bytes; a hundred for each image
COLUMNS = ("files", "offsets", "sizes", "labels")  # the arrays of a TarIndex


class Entry(NamedTuple):
    """A file inside a tar, or inside a tar in a tar, whose stem then is the folder in `name`."""

    file: int  # number of the tar
    name: str
    offset: int  # of its bytes, from the beginning of the outer tar
    size: int


@dataclass(frozen=True)
class TarIndex:
    names: Names
    files: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    classes: list[str]


class TarSet(ImageSet):
    def __init__(self, paths: list[Path], index: TarIndex):
        super().__init__(index.labels, index.classes)
        self.paths, self.index = paths, index

    def name_of(self, index: int) -> str:
        return f"{self.paths[self.index.files[index]]}:{self.index.names[index]}"

    def open(self, index: int) -> io.BytesIO:
        path, size = self.paths[self.index.files[index]], int(self.index.sizes[index])
        with open(path, "rb", buffering=0) as file:  # anew for every image: thousands of open shards may be too many
            content = os.pread(file.fileno(), size, int(self.index.offsets[index]))
        if len(content) < size:
            raise OSError(f"{path} ends early")
        return io.BytesIO(content)


def open_tars(data: ImageData, split: str, paths: list[Path], say: Say) -> TarSet:
    """Open the tars of a split, with the index from the cache if they are unchanged (name, size, time)."""
    stamps = [[path.name, (status := path.stat()).st_size, status.st_mtime_ns] for path in paths]
    cached = data.cache_path / f"{data.name}-{split}-tars-{checksum([FORMAT, stamps])[:12]}.npz"
    index = _load(cached)
    if index is None:
        entries: list[Entry] = []
        for number, path in enumerate(paths):
            say(f"indexing {path.name} ({number + 1} of {len(paths)})")
            entries += _entries(number, path)
        index = _index(paths, entries)
        _save(cached, index)
    return TarSet(paths, index)


def _entries(number: int, path: Path) -> Iterator[Entry]:
    try:
        require_small(path, 2**50)  # a pipe would be waited for
        with tarfile.open(path, "r:") as tar:
            for member in _members(tar, path):
                if not member.name.endswith(".tar"):
                    yield Entry(number, member.name, member.offset_data, member.size)
                    continue
                folder = PurePosixPath(member.name).stem
                with tarfile.open(fileobj=tar.extractfile(member), mode="r:") as inner:
                    for image in _members(inner, path):
                        name = f"{folder}/{PurePosixPath(image.name).name}"
                        yield Entry(number, name, member.offset_data + image.offset_data, image.size)
    except (tarfile.TarError, OSError, ValueError) as error:  # a damaged header also leads beyond the end of the file
        raise SetupError(
            f"{path} cannot be read as a plain tar ({error}): copy it again if it is damaged, or decompress it "
            "(gunzip), because a compressed tar has no random access"
        ) from error


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        if member.issym() or member.islnk():  # a folder has the images that its links lead to
            raise SetupError(
                f"{path}: {member.name} is a link, whose images would be left out: make the tar again with files in "
                "the place of links (tar --dereference --hard-dereference)"
            )
        if member.isfile() and not OF_MACOS.search(member.name):
            yield member
        # the tar would keep all members in memory, a gigabyte for ImageNet; typeshed lacks `members`
        tar.members.clear()  # type: ignore[attr-defined]
    # the tar must end with a block of zeros: tarfile takes a cut or damaged header for the end, and would silently
    # leave out all files after it
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)  # where the next header would be
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"it ends early or is damaged at byte {tar.offset:,}")


def _index(paths: list[Path], entries: list[Entry]) -> TarIndex:
    shards = any(entry.name.endswith(LABELS) for entry in entries)
    images, labels, classes = _by_key(paths, entries) if shards else _by_folder(paths, entries)
    return TarIndex(
        names=Names.pack(entry.name for entry in images),
        files=np.array([entry.file for entry in images], np.int32),
        offsets=np.array([entry.offset for entry in images], np.int64),
        sizes=np.array([entry.size for entry in images], np.int64),
        labels=checked_labels(np.array(labels, object), str(paths[0])),
        classes=classes,
    )


def _by_folder(paths: list[Path], entries: list[Entry]) -> tuple[list[Entry], list[int], list[str]]:
    """Images, labels and classes from class folders, sorted by class and path like an unpacked folder. A class is a
    folder in the one that all images have in common: n01440764 of train/n01440764/images/x.JPEG. Of a single class the
    images have to be in one folder."""
    images = [entry for entry in entries if posixpath.splitext(entry.name)[1].lower() in EXTENSIONS]
    if not images:
        raise SetupError(f"{paths[0]} holds no images")
    paths_in = [posixpath.normpath(entry.name).lstrip("/") for entry in images]
    folders = {posixpath.dirname(path) for path in paths_in}
    root = posixpath.commonpath(folders) if len(folders) > 1 else posixpath.dirname(*folders)
    below = [path[len(root) :].lstrip("/").partition("/") for path in paths_in]  # (class, "/", path in its folder)
    order = sorted(range(len(images)), key=below.__getitem__)
    if loose := next((image for image, (_, slash, _) in zip(images, below, strict=True) if not slash), None):
        reason = "is not in a class folder (as in ILSVRC2012_img_val.tar: unpack it, sort the images into val/<class>/)"
        if len(folders) > 1:
            reason = f"is above the class folders in {root or 'it'}: move it into one"
        raise SetupError(f"{paths[loose.file]} has no labels: {loose.name} {reason}")
    classes = sorted({name for name, _, _ in below})
    numbers = {name: number for number, name in enumerate(classes)}
    return [images[i] for i in order], [numbers[below[i][0]] for i in order], classes


def _by_key(paths: list[Path], entries: list[Entry]) -> tuple[list[Entry], list[int], list[str]]:
    """Images, labels and no class names from WebDataset shards, in their order. A key is a path up to the first dot of
    its last part."""
    images: dict[tuple[int, str], Entry] = {}
    labels: dict[tuple[int, str], int] = {}
    for entry in entries:
        path = PurePosixPath(entry.name)
        stem, _, suffix = path.name.partition(".")
        key = entry.file, str(path.parent / stem)
        if f".{suffix.lower()}" in EXTENSIONS:
            images[key] = entry
        elif f".{suffix}" in LABELS:
            labels.setdefault(key, -1)
            if (label := _label(paths[entry.file], entry)) is not None:
                labels[key] = label
    for key, entry in images.items():
        if labels.get(key, -1) < 0:
            raise SetupError(f"{paths[entry.file]}: {entry.name} has no class number in a .cls or .json beside it")
    return list(images.values()), [labels[key] for key in images], []


def _label(path: Path, entry: Entry) -> int | None:
    with open(path, "rb") as file:
        text = os.pread(file.fileno(), entry.size, entry.offset)
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = value["label"] if "label" in value else value["cls"]
        number = int(value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return number if number == value or isinstance(value, str) else None  # 1.7 is the number of no class


def _save(path: Path, index: TarIndex) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: getattr(index, name) for name in COLUMNS}
    classes = np.frombuffer(json.dumps(index.classes).encode(), np.uint8)
    with replacing(path) as file:
        np.savez(file, block=index.names.block, ends=index.names.ends, **columns, classes=classes)


def _load(path: Path) -> TarIndex | None:
    try:
        require_small(path, LARGEST_INDEX)
        with np.load(path, allow_pickle=False) as arrays:
            names, classes = Names(arrays["block"], arrays["ends"]), json.loads(arrays["classes"].tobytes())
            return TarIndex(names=names, classes=classes, **{name: arrays[name] for name in COLUMNS})
    except Exception:  # missing, incomplete or damaged, for which zipfile raises many kinds: made again
        return None

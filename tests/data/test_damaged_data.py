"""Damaged data is the same data or an error that names it; it never is other data."""

import errno
import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fourierformer.data.images.corpus import load_images
from fourierformer.data.images.folder import FolderSet
from fourierformer.data.images.sets import Unreadable, to_rgb
from fourierformer.data.text.corpus import load_corpus
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError
from tests.helpers.image_cases import CLASSES, files, image_data, tar_of, write


def images_of(root, cache) -> list[tuple[bytes, int]] | None:
    """Pixels and label of every image; None where the data is refused."""
    try:
        corpus = load_images(image_data("imagenet", root=str(root), cache=str(cache), expect=None))
    except SetupError:
        return None
    sets = [corpus.splits[split] for split in ("train", "valid")]
    return [(images.pixels(i).tobytes(), int(images.labels[i])) for images in sets for i in range(len(images))]


@pytest.mark.parametrize("form", ["tar", "tar_of_tars", "shards"])
def test_a_tar_cut_anywhere_holds_all_images_or_is_refused(form, tmp_path):
    root = write(tmp_path / "data", form, files())
    expected = images_of(root, tmp_path / "cache")
    path, draw, refused = sorted(root.glob("*train*.tar"))[0], random.Random(0), 0
    content = path.read_bytes()
    for number, length in enumerate(sorted(draw.randrange(len(content)) for _ in range(100))):
        path.write_bytes(content[:length])
        found = images_of(root, tmp_path / f"cache-{number}")
        refused += found is None
        assert found in (None, expected), length
    assert refused > 20


def test_a_tar_with_a_damaged_header_is_refused(tmp_path):
    root = write(tmp_path / "data", "tar", files())
    path = root / "train.tar"
    content = bytearray(path.read_bytes())
    second = content.index(b"train/n0", 512)
    content[second] ^= 1
    path.write_bytes(content)
    assert images_of(root, tmp_path / "cache") is None


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_a_pipe_in_place_of_a_file_of_images_is_refused(form, tmp_path):
    root = write(tmp_path / "data", form, files())
    path = next(root.rglob(f"*train*.{form}"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SetupError, match=r"cannot be (read|opened).*it is not a file"):
        load_images(image_data("imagenet", root=str(root), cache=str(tmp_path / "cache"), expect=None))


def test_a_damaged_index_of_a_tar_is_made_again(tmp_path):
    root, cache, draw = write(tmp_path / "data", "tar", files()), tmp_path / "cache", random.Random(0)
    expected = images_of(root, cache)
    (index,) = cache.glob("*-train-tars-*.npz")
    content = index.read_bytes()
    for _ in range(40):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        index.write_bytes(damaged)
        assert images_of(root, cache) == expected


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_become_eight_in_proportion(kind):
    """65535 = 255 * 257: the brightest stays the brightest, and shades keep their order."""
    shades = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    buffer = io.BytesIO()
    Image.fromarray(shades).save(buffer, kind)
    read = np.asarray(to_rgb(Image.open(buffer)))
    assert read.shape == (256, 256, 3)
    assert np.abs(read[..., 0].astype(float) - shades / 257).max() <= 0.5


def test_thirty_two_bits_have_no_known_range():
    with pytest.raises(ValueError, match="convert it to 8 or 16 bits"):
        to_rgb(Image.fromarray(np.array([[0.0, 1.0]], np.float32)))


@pytest.mark.parametrize("label", ["1099511627776", "-1", "1.7", "many", '{"label": 1099511627776}'])
def test_a_label_that_is_no_class_is_refused(label, tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    png = next(iter(files()["train"].values()))
    name = "0.json" if label.startswith("{") else "0.cls"
    for split in ("train", "val"):
        (root / f"{split}.tar").write_bytes(tar_of({"0.png": png, name: label.encode()}))
    with pytest.raises(SetupError, match=r"a label is 1,099,511,627,776|no class number"):
        load_images(image_data("imagenet", root=str(root), cache=str(tmp_path / "cache"), expect=None))


def test_a_large_label_in_parquet_is_refused(tmp_path):
    import datasets

    png = next(iter(files()["train"].values()))
    for split in ("train", "validation"):
        rows = {"image": [png, png], "label": [0, 2**40]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(SetupError, match=r"column 'label': a label is 1,099,511,627,776"):
        load_images(image_data("imagenet", root=str(tmp_path), cache=str(tmp_path / "cache"), expect=None))


@pytest.mark.parametrize("kind", ["a pipe", "a link to a device", "a file with holes"])
def test_only_plain_files_of_a_bounded_size_are_images(kind, tmp_path):
    """Reading the others would wait for ever, or fill the memory."""
    path = tmp_path / "class" / "image.png"
    path.parent.mkdir()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link to a device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 40 * 2**30)
    images = FolderSet(tmp_path)
    with pytest.raises(
        Unreadable, match="it has 42,949,672,960 bytes" if kind == "a file with holes" else "not a file"
    ):
        images.read(0)
    assert images.content(0) == b""


def test_a_link_that_leads_back_is_refused(tmp_path):
    root = write(tmp_path / "data", "folder", files())
    folder = next((root / "train").iterdir())
    (folder / "again").symlink_to(folder, target_is_directory=True)
    with pytest.raises(SetupError, match="again is a link to a folder that it lies in: remove it"):
        load_images(image_data("imagenet", root=str(root), cache=str(tmp_path / "cache"), expect=None))
    (folder / "again").unlink()
    (tmp_path / "elsewhere").mkdir()
    (folder / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)  # others are followed
    assert images_of(root, tmp_path / "cache") is not None


def text(root, cache) -> TextData:
    return TextData(name="mine", root=str(root), cache=str(cache))


def test_a_folder_of_images_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    """os.walk leaves it out, and the images in it."""
    root = write(tmp_path / "data", "folder", files())
    data = image_data("imagenet", root=str(root), cache=str(tmp_path / "cache"), expect=None)
    inner = root / "train" / CLASSES[1] / "more"
    inner.mkdir()
    scandir = os.scandir

    def refusing(path):
        if Path(path) == inner:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SetupError, match=rf"cannot read {inner}: Permission denied"):
        load_images(data)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([None, "a b"], "a row of column 'text' is None, not text"),
        ([1, 2], "a row of column 'text' is 1, not text"),
        (None, "cannot be read as parquet"),
    ],
)
def test_parquet_that_is_no_text_is_refused(rows, message, tmp_path):
    import datasets

    for split in ("train", "valid", "test"):
        datasets.Dataset.from_dict({"text": rows or ["a b"]}).to_parquet(tmp_path / f"{split}.parquet")
    if rows is None:
        os.truncate(tmp_path / "valid.parquet", 100)
    with pytest.raises(SetupError, match=message):
        load_corpus(text(tmp_path, tmp_path / "cache"))


def test_an_empty_text_is_called_empty(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text("" if split == "train" else "a b\n")
    with pytest.raises(SetupError, match="the train text is empty"):
        load_corpus(text(tmp_path, tmp_path / "cache"))

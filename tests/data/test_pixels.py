"""Images as tokens: raster order with channels last, out of every form of data, prepared once and checked."""

import io
import socket
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fourierformer.data.text import pixels
from fourierformer.data.text.corpus import TextData, check_available, load_corpus
from fourierformer.errors import SetupError
from tests.helpers.image_cases import CLASSES, CONFIGS, tar_of, write
from tests.helpers.networks import refused

HEIGHT, WIDTH = 5, 7


def config(name: str, **changes) -> TextData:
    return TextData(**yaml.safe_load((CONFIGS / "data" / f"{name}.yaml").read_text()) | changes)


def picture(*seed: int, height: int = HEIGHT) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, WIDTH, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def made(**counts: int) -> dict[str, dict[str, np.ndarray]]:
    """split -> {class/name: image}, in the order of their names."""
    return {
        split: {f"{c}/{c}_{n}.png": picture(len(split), i, n) for i, c in enumerate(CLASSES) for n in range(count)}
        for split, count in ({"train": 4, "val": 2} | counts).items()
    }


def written(root: Path, form: str, images: dict[str, dict[str, np.ndarray]]) -> Path:
    encoded = {split: {name: png(image) for name, image in of_split.items()} for split, of_split in images.items()}
    return write(root, form, encoded)


@pytest.fixture
def data(tmp_path) -> TextData:
    return TextData(name="small", unit="pixel", root=str(tmp_path / "root"), cache=str(tmp_path / "cache"))


def by_hand(image: np.ndarray) -> list[int]:
    """Row by row from the top, in a row from the left, of a pixel red, green, blue."""
    rows, columns, channels = image.shape
    return [int(image[y, x, c]) for y in range(rows) for x in range(columns) for c in range(channels)]


@pytest.mark.parametrize("form", ["folder", "tar", "shards", "parquet"])
def test_every_form_gives_the_pixels_in_raster_order(data, form):
    images = made()
    written(data.root_path, form, images)
    corpus = load_corpus(data)
    assert (corpus.unit, corpus.vocab_size, corpus.sequence) == ("pixel", 256, HEIGHT * WIDTH * 3)
    for split, source in {"train": "train", "valid": "val", "test": "val"}.items():
        sequences = corpus.splits[split].reshape(-1, HEIGHT * WIDTH * 3).tolist()
        expected = [by_hand(image) for image in images[source].values()]
        assert sorted(sequences) == sorted(expected)  # shards hold them in another order
        assert form == "shards" or sequences == expected
    assert [note for note in corpus.notes if "valid and test are the same images" in note]


def test_the_prepared_copy_serves_and_other_images_make_another(data, tmp_path, monkeypatch):
    written(data.root_path, "folder", made())
    folder = load_corpus(data).folder
    with monkeypatch.context() as patch:
        patch.setattr(pixels, "open_splits", None)  # not even opened
        assert load_corpus(data).folder == folder
    other = tmp_path / "other"
    images = made()
    images["val"][f"{CLASSES[2]}/{CLASSES[2]}_1.png"][-1, -1, -1] ^= 1
    written(other, "folder", images)
    assert load_corpus(replace(data, root=str(other))).folder != folder
    raw = bytearray((folder / "test.bin").read_bytes())
    raw[-1] ^= 1
    (folder / "test.bin").write_bytes(raw)
    with pytest.raises(SetupError, match="rm -r"):
        load_corpus(data)


def test_a_copied_cache_serves_without_the_images(data):
    written(data.root_path, "parquet", made())
    folder = load_corpus(data).folder
    data.root_path.rename(data.root_path.with_name("elsewhere"))
    check_available(data)
    assert load_corpus(data).folder == folder


def test_images_of_two_sizes_are_refused_by_name(data):
    images = made()
    images["val"][f"{CLASSES[1]}/{CLASSES[1]}_0.png"] = picture(9, height=HEIGHT + 1)
    written(data.root_path, "folder", images)
    with pytest.raises(SetupError, match=rf"{CLASSES[1]}_0.png is 7 x 6 and the first training image 7 x 5"):
        load_corpus(data)


def test_an_image_that_cannot_be_read_is_named(data):
    written(data.root_path, "folder", made())
    (data.root_path / "train" / CLASSES[0] / f"{CLASSES[0]}_2.png").write_bytes(b"no image")
    with pytest.raises(SetupError, match=rf"cannot read .*{CLASSES[0]}_2.png"):
        load_corpus(data)
    assert not list(data.cache_path.glob("*.tmp"))


def test_missing_images_are_said_with_the_ways_out(data):
    for _ in range(2):
        with pytest.raises(SetupError) as error:
            check_available(replace(data, hub="Someone/images"))
        for part in ("(a) put train*.parquet", "data.root=", "(b) copy a prepared cache", "experiment=builtin_pixels"):
            assert part in str(error.value)
        assert "Traceback" not in str(error.value)
        data.root_path.mkdir(exist_ok=True)  # then it is there and empty
        (data.root_path / "train.tar").write_bytes(tar_of({}))  # one split alone does not do


def test_the_copy_of_the_hub_is_read(data, tmp_path, monkeypatch):
    """What `datasets` leaves behind after load_dataset("Someone/images"), written by `datasets` itself."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setattr(socket, "create_connection", refused)
    folder = tmp_path / "hf/datasets/Someone___images/default/0.0.0/abcdef"
    folder.mkdir(parents=True)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    images = made()
    for split, name in {"train": "train", "val": "test"}.items():
        with ArrowWriter(path=str(folder / f"images-{name}.arrow"), features=features) as writer:
            for path, image in images[split].items():
                writer.write({"img": {"bytes": png(image), "path": path}, "label": CLASSES.index(path.split("/")[0])})
            writer.finalize()
    hosted = replace(data, hub="Someone/images")
    check_available(hosted)
    corpus = load_corpus(hosted)
    expected = [value for image in images["val"].values() for value in by_hand(image)]
    assert corpus.splits["test"].tolist() == expected
    monkeypatch.setattr(pixels, "hub_source", None)
    assert load_corpus(hosted).folder == corpus.folder  # the prepared copy serves from now on


def test_digits_are_as_scikit_learn_has_them(tmp_path):
    from sklearn.datasets import load_digits

    corpus = load_corpus(config("builtin_pixels", cache=str(tmp_path)))
    assert (corpus.vocab_size, corpus.sequence) == (17, 64)
    assert {split: len(tokens) // 64 for split, tokens in corpus.splits.items()} == {
        "train": 1437,
        "valid": 360,
        "test": 360,
    }
    assert not [note for note in corpus.notes if "not the paper's data" in note]
    digits = np.concatenate([corpus.splits["train"], corpus.splits["test"]]).reshape(-1, 64)
    assert sorted(digits.tolist()) == sorted(load_digits().data.astype(int).tolist())
    assert digits.max() == 16


def test_images_are_no_text(tmp_path):
    corpus = load_corpus(config("builtin_pixels", cache=str(tmp_path)))
    for call in (lambda: corpus.encode("abc"), lambda: corpus.decode([1, 2])):
        with pytest.raises(SetupError, match="holds images"):
            call()


def test_cifar10_by_its_pixels(real_data, tmp_path):
    """The first test images of the real files, decoded here; all 60,000 take a minute to prepare."""
    import pyarrow.parquet

    data = config("cifar10_pixels", root=str(real_data / "cifar10"), cache=str(tmp_path))
    expect = data.expect
    assert expect["train"] == 50_000 * expect["sequence"]
    assert expect["test"] == expect["valid"] == 10_000 * expect["sequence"]
    assert expect["sequence"] == 32 * 32 * 3
    (tmp_path / "root").mkdir()
    for split in ("train", "test"):
        rows = pyarrow.parquet.read_table(real_data / "cifar10/test.parquet").slice(0, 5)
        pyarrow.parquet.write_table(rows, tmp_path / f"root/{split}.parquet")
    pieces = list(islice(pixels.local_source(replace(data, root=str(tmp_path / "root"))).pieces("test"), 5))
    for piece, row in zip(pieces, rows.column("image").to_pylist(), strict=True):
        with Image.open(io.BytesIO(row["bytes"])) as image:
            flat = [value for pixel in image.convert("RGB").get_flattened_data() for value in pixel]
        assert list(piece) == flat
        assert len(piece) == 3072

"""Every form of a data set gives the same images and labels; missing, damaged or inconsistent data is reported."""

import hashlib
import io
import os
import shutil
import socket
import tarfile
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fourierformer.data.images.corpus import check_available, load_images
from fourierformer.data.images.sets import SAMPLED, ImageSet, Unreadable
from fourierformer.errors import SetupError
from tests.helpers.image_cases import CLASSES, FORMS, files, image_data, tar_of, write
from tests.helpers.networks import refused, silent_network


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setattr(socket, "create_connection", refused)  # every connection fails


@pytest.fixture
def small(tmp_path):
    def make(form: str, made=None):
        root = write(tmp_path / form, form, made or files())
        return image_data("imagenet", root=str(root), cache=str(tmp_path / "cache"), hub=None, expect=None)

    return make


def content(images) -> Counter:
    """Pixels with labels, in whatever order."""
    return Counter((image.tobytes(), image.size, label) for image, label in map(images.read, range(len(images))))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_and_labels(form, small):
    corpus = load_images(small(form))
    assert len(corpus.classes) == 3
    if "shards" not in form:  # a shard has numbers only
        assert corpus.classes == CLASSES
    for split, name in (("train", "train"), ("valid", "val")):
        expected = Counter()
        for path, png in files()[name].items():
            with Image.open(io.BytesIO(png)) as image:
                expected[image.tobytes(), image.size, CLASSES.index(path.split("/")[0])] += 1
        assert content(corpus.splits[split]) == expected


@pytest.mark.parametrize("form", FORMS)
def test_the_check_looks_at_names_only(form, small):
    """So it takes no longer where the files are large."""
    data = small(form)
    for path in filter(Path.is_file, Path(data.root).rglob("*")):
        os.truncate(path, 0)
    check_available(data)


def test_tars_have_the_order_of_the_folder_they_were_made_from(small):
    folder, tar, tars = (load_images(small(form)).splits["train"] for form in ("folder", "tar", "tar_of_tars"))
    for index in range(len(folder)):
        assert folder.read(index) == tar.read(index) == tars.read(index)
        assert Path(folder.name_of(index)).name == Path(tar.name_of(index)).name == Path(tars.name_of(index)).name
    assert folder.labels.tolist() == sorted(folder.labels)


def test_a_tar_has_the_classes_of_the_folder_it_was_made_from_also_with_folders_in_them(small):
    """n01/images/x.png, as Tiny ImageNet has them."""
    data = small("folder")
    for split in ("train", "val"):
        nested = {f"{split}/{name.replace('/', '/images/')}": content for name, content in files()[split].items()}
        for name, content in nested.items():
            path = Path(data.root, "nested", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        Path(data.root, "nested", f"{split}.tar").write_bytes(tar_of(nested))
    folder = load_images(replace(data, root=f"{data.root}/nested"))
    fingerprint = folder.fingerprint  # reads the files
    for split in ("train", "val"):
        shutil.rmtree(Path(data.root, "nested", split))
    tar = load_images(replace(data, root=f"{data.root}/nested"))
    assert folder.splits["train"].classes == tar.splits["train"].classes == CLASSES
    assert folder.splits["train"].labels.tolist() == tar.splits["train"].labels.tolist()
    assert tar.fingerprint == fingerprint


@pytest.mark.parametrize("form", ["folder", "tar", "tar_of_tars"])
def test_the_second_files_of_macos_are_no_images(small, form, tmp_path):
    made = files()
    expected = load_images(small(form)).fingerprint
    shutil.rmtree(tmp_path / form)
    for split in made:
        for name in list(made[split]):
            folder, image = name.split("/")
            made[split][f"{folder}/._{image}"] = b"no image"
            if form != "tar_of_tars":
                made[split][f"__MACOSX/{folder}/._{image}"] = b"no image"
    assert load_images(small(form, made)).fingerprint == expected


def test_an_image_above_the_class_folders_is_named(small):
    data = small("tar")
    images = {f"train/{name}": content for name, content in files()["train"].items()}
    (path,) = Path(data.root).glob("*train*.tar")
    path.write_bytes(tar_of(images | {"train/preview.png": b"x"}))
    with pytest.raises(SetupError, match=r"train/preview.png is above the class folders in train: move it into one"):
        load_images(data)


def test_the_dogs_of_imagenets_third_task_are_no_second_copy(small):
    data = small("tar")
    (tar,) = Path(data.root).glob("*train*.tar")
    shutil.copy(tar, tar.with_name(f"{tar.stem}_t3.tar"))
    assert len(load_images(data).splits["train"]) == len(files()["train"])


class Numbers(ImageSet):
    """Image i is the text of i, but for those that `changed` names."""

    changed: frozenset[int] = frozenset()

    def name_of(self, index: int) -> str:
        return str(index)

    def open(self, index: int) -> io.BytesIO:
        return io.BytesIO(f"{index}{'!' * (index in self.changed)}".encode())

    def digest(self) -> str:
        self.add_to(digest := hashlib.sha256())
        return digest.hexdigest()


def test_the_images_of_a_fingerprint_are_spread_evenly_from_the_first_to_the_last():
    images = Numbers(np.arange(1 + 7 * (SAMPLED - 1)), [])
    alone, read = images.digest(), set()
    for index in range(len(images)):
        images.changed = frozenset({index})
        if images.digest() != alone:
            read.add(index)
    assert read == set(range(0, len(images), 7))


def test_a_fingerprint_is_of_the_images_and_their_order_not_of_files_or_folders(small, tmp_path):
    folder = small("folder")
    fingerprint = load_images(folder).fingerprint
    assert load_images(small("tar")).fingerprint == load_images(small("tar_of_tars")).fingerprint == fingerprint
    in_memory = load_images(replace(small("parquet"), in_memory=True))  # not decoded: their sizes differ
    assert load_images(small("json_shards")).fingerprint != fingerprint  # numbers for names of classes
    assert in_memory.fingerprint == fingerprint
    shutil.copytree(tmp_path / "folder", tmp_path / "moved")
    data = replace(folder, root=str(tmp_path / "moved"))
    assert load_images(data).fingerprint == fingerprint
    path = next((tmp_path / "moved" / "val").rglob("*.png"))
    for change in (lambda: path.write_bytes(path.read_bytes() + b"\0"), path.unlink):
        change()
        assert load_images(data).fingerprint != fingerprint


def test_a_tar_is_indexed_once_and_again_when_it_changes(small):
    data = small("tar")
    lines: list[str] = []
    load_images(data, lines.append)
    assert sum("indexing" in line for line in lines) == 2
    lines.clear()
    load_images(data, lines.append)
    assert lines == []
    for cached in Path(data.cache).glob("*.npz"):  # cut short by a full disk, say
        cached.write_bytes(cached.read_bytes()[:100])
    assert len(load_images(data).splits["train"]) == 12
    for cached in Path(data.cache).glob("*.npz"):  # reading a pipe would wait for ever
        cached.unlink()
        os.mkfifo(cached)
    assert len(load_images(data).splits["train"]) == 12
    fewer = {f"train/{name}": png for name, png in files()["train"].items() if not name.endswith("_3.png")}
    Path(data.root, "train.tar").write_bytes(tar_of(fewer))
    assert len(load_images(data).splits["train"]) == 9


def test_names_take_no_python_object_per_image(small):
    names = load_images(small("folder")).splits["train"].names
    assert names.block.nbytes == sum(len(names[index]) for index in range(12))
    assert isinstance(names.ends, np.ndarray)


def test_forms_may_differ_between_the_splits(small):
    data = small("tar_of_tars")
    Path(data.root, "ILSVRC2012_img_val.tar").unlink()
    shutil.move(Path(small("folder").root, "val"), data.root)
    corpus = load_images(data)
    assert {split: len(images) for split, images in corpus.splits.items()} == {"train": 12, "valid": 6}


def test_cifar10_is_whole(real_data, tmp_path):
    data = image_data("cifar10", root=str(real_data / "cifar10"), cache=str(tmp_path))
    check_available(data)
    corpus = load_images(data)
    assert {split: len(images) for split, images in corpus.splits.items()} == {"train": 50_000, "valid": 10_000}
    assert corpus.classes == ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert corpus.notes == []
    for images in corpus.splits.values():  # row i has class i % 10 (data README)
        assert (images.labels == np.arange(len(images)) % 10).all()
    sample = np.stack([np.asarray(corpus.splits["train"].read(index)[0]) for index in range(0, 50_000, 49)]) / 255
    # a thousand images (49 and 10 share no factor: of all classes) against the mean and deviation of all images
    assert sample.mean((0, 1, 2)) == pytest.approx(data.mean, abs=0.02)
    assert sample.std((0, 1, 2)) == pytest.approx(data.std, abs=0.01)


def test_the_imagenet_sample_has_the_thousand_classes_in_order(real_data, tmp_path):
    (tmp_path / "root").mkdir()
    for split in ("train", "val"):
        (tmp_path / "root" / split).symlink_to(real_data / "imagenet-sample/val")
    corpus = load_images(image_data("imagenet", root=str(tmp_path / "root"), cache=str(tmp_path)))
    listed = (real_data / "imagenet-sample/classes.txt").read_text().splitlines()
    assert corpus.classes == [line.split()[0] for line in listed]
    assert corpus.splits["valid"].labels.tolist() == list(range(1000))
    assert corpus.notes == [
        "your data is not the paper's data: 1,000 training images instead of 1,281,167",
        "your data is not the paper's data: 1,000 validation images instead of 50,000",
    ]


def test_the_digits_are_all_there_once_and_evenly_held_out():
    from sklearn.datasets import load_digits

    corpus = load_images(image_data("builtin_images"))
    train, valid = corpus.splits["train"], corpus.splits["valid"]
    assert (len(train), len(valid)) == (1437, 360)
    assert sorted([*train.numbers, *valid.numbers]) == list(range(1797))
    whole = np.bincount(load_digits().target)
    assert (abs(np.bincount(valid.labels) - 360 / 1797 * whole) <= 1).all()
    image, label = valid.read(0)
    assert (image.size, image.mode) == ((32, 32), "RGB")
    small = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX)) * (16 / 255)
    assert np.corrcoef(small.ravel(), load_digits().images[valid.numbers[0]].ravel())[0, 1] > 0.97
    assert label == load_digits().target[valid.numbers[0]]


@pytest.mark.parametrize("form", ["folder", "tar", "parquet"])
def test_a_damaged_image_is_named(form, small):
    made = files()
    name = f"{CLASSES[1]}/{CLASSES[1]}_2.png"
    made["train"][name] = made["train"][name][:300]
    images = load_images(small(form, made)).splits["train"]
    with pytest.raises(Unreadable) as caught:
        images.read(6)  # class 1 begins at 4
    assert caught.value.index == 6
    assert ("row 6" if form == "parquet" else name) in str(caught.value)
    assert images.read(7)[1] == 1


def test_a_damaged_image_in_memory_is_named(small):
    one_size = {split: {name: png for name, png in made.items() if "_0" in name} for split, made in files().items()}
    same = next(iter(one_size["train"].values()))
    made = {split: dict.fromkeys(images, same) for split, images in one_size.items()}
    name = f"{CLASSES[1]}/{CLASSES[1]}_0.png"
    made["train"][name] = same[:300]
    images = load_images(replace(small("folder", made), in_memory=True)).splits["train"]
    images.decode()
    with pytest.raises(Unreadable, match=name) as caught:
        images.read(1)
    assert caught.value.index == 1
    assert np.array_equal(np.asarray(images.read(2)[0]), np.asarray(Image.open(io.BytesIO(same))))
    assert images.read(2)[1] == 2


def test_meeting_it_again_and_again_keeps_nothing(small):
    """An exception that is raised twice keeps the frames of both, and the images that were in them."""
    images = load_images(replace(small("folder"), in_memory=True)).splits["train"]
    images.decoded, images.unreadable = np.zeros((len(images), 2, 2, 3), np.uint8), {3: (3, "x.png", "no image")}
    depths = set()
    for _ in range(5):
        with pytest.raises(Unreadable) as met:
            images.read(3)
        depths.add(len(list(traceback.walk_tb(met.value.__traceback__))))
    assert len(depths) == 1


def test_images_of_several_sizes_are_not_held_in_memory(small):
    images = load_images(replace(small("folder"), in_memory=True)).splits["train"]
    with pytest.raises(SetupError, match=r"has 24 x 21 pixels, .* have 24 x 20: .* Use data.in_memory=false"):
        images.decode()


def test_a_tar_that_was_cut_short_is_refused(small):
    data = small("tar")
    path = Path(data.root, "train.tar")
    path.write_bytes(path.read_bytes()[: 3 * 512 + 700])
    with pytest.raises(SetupError, match=r"train.tar cannot be read as a plain tar .* copy it again if it is damaged"):
        load_images(data)


@pytest.mark.parametrize("kind", ["hard", "symbolic", "inner"])
def test_a_tar_with_a_link_in_the_place_of_an_image_is_refused(kind, small):
    """GNU tar stores a link where a folder, which follows it, has an image."""
    data = small("folder")
    train = Path(data.root, "train")
    first, linked = train / CLASSES[0] / f"{CLASSES[0]}_0.png", train / CLASSES[0] / "linked.png"
    linked.symlink_to(first.name) if kind == "symbolic" else linked.hardlink_to(first)
    assert len(load_images(data).splits["train"]) == 13
    with tarfile.open(Path(data.root, "train.tar"), "w") as tar:
        if kind == "inner":
            for folder in sorted(train.iterdir()):
                with tarfile.open(Path(data.root, f"{folder.name}.tar"), "w") as inner:
                    inner.add(folder, ".")
                tar.add(Path(data.root, f"{folder.name}.tar"), f"{folder.name}.tar")
        else:
            tar.add(train, "train")
    shutil.rmtree(train)
    with pytest.raises(SetupError, match=r"train.tar: .*\.png is a link, .* --dereference --hard-dereference"):
        load_images(data)


def test_a_compressed_tar_is_refused_with_the_way_out(small):
    import gzip

    data = small("tar")
    path = Path(data.root, "train.tar")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SetupError, match="decompress it \\(gunzip\\)"):
        load_images(data)


def test_validation_images_without_classes_are_explained(small):
    data = small("folder")
    loose = {Path(name).name: png for name, png in files()["val"].items()}
    shutil.rmtree(Path(data.root, "val"))
    Path(data.root, "ILSVRC2012_img_val.tar").write_bytes(tar_of(loose))
    with pytest.raises(SetupError, match=r"ILSVRC2012_img_val.tar has no labels: .* sort the images into val/<class>/"):
        load_images(data)
    Path(data.root, "ILSVRC2012_img_val.tar").unlink()
    (Path(data.root) / "val").mkdir()
    (Path(data.root) / "val" / "a.png").write_bytes(b"")
    with pytest.raises(SetupError, match=r"has no folder per class; images outside of such a folder have no label"):
        check_available(data)


def test_splits_must_have_the_same_classes(small):
    data = small("folder")
    shutil.rmtree(Path(data.root, "val", CLASSES[1]))
    with pytest.raises(SetupError, match=f"train has 3 classes and valid 2.*only in train: {CLASSES[1]}"):
        load_images(data)


def test_an_empty_class_is_named(small):
    data = small("folder")
    Path(data.root, "train", "n09999999").mkdir()
    with pytest.raises(SetupError, match="class folders without images: n09999999"):
        load_images(data)


def test_a_shard_without_a_label_is_named(small):
    data = small("shards")
    path = Path(data.root, "small-train-0001.tar")
    path.write_bytes(tar_of({"7.png": b"x", "7.txt": b"1", "8.png": b"x", "8.cls": b"0"}))
    with pytest.raises(SetupError, match=r"small-train-0001.tar: 7.png has no class number in a .cls or .json"):
        load_images(data)


@pytest.mark.parametrize(
    "label", [("cls", b"%d"), ("json", b'{"label": %d}'), ("json", b'{"cls": %d}')], ids=["cls", "label", "json_cls"]
)
def test_equal_keys_in_other_shards_and_other_folders_are_other_images(small, label):
    data, kind, form = small("folder"), *label
    for split in ("train", "val"):
        shutil.rmtree(Path(data.root, split))
        images = iter(files()[split].items())
        for shard in range(2):
            members = {}
            for folder in CLASSES:
                name, png = next(images)
                members[f"{folder}/0.{kind}"] = form % CLASSES.index(name.split("/")[0])
                members[f"{folder}/0.png"] = png
            Path(data.root, f"small-{split}-{shard}.tar").write_bytes(tar_of(members))
    for split, name in (("train", "train"), ("valid", "val")):
        expected = Counter()
        for path, png in list(files()[name].items())[:6]:
            with Image.open(io.BytesIO(png)) as image:
                expected[image.tobytes(), image.size, CLASSES.index(path.split("/")[0])] += 1
        assert content(load_images(data).splits[split]) == expected


def test_all_shards_of_parquet_are_read_in_the_order_of_their_names(small):
    import datasets

    data = small("parquet")
    expected = load_images(data)
    (whole,) = Path(data.root).glob("train*")
    rows = datasets.load_dataset("parquet", data_files=str(whole), split="train", cache_dir=data.cache)
    whole.unlink()
    for number in reversed(range(4)):
        rows.shard(4, number, contiguous=True).to_parquet(Path(data.root, f"train-{number:05}-of-00004.parquet"))
    assert load_images(data).fingerprint == expected.fingerprint
    assert len(load_images(data).splits["train"]) == 12


def test_unpacking_parquet_writes_no_bars_into_a_log_file(small, capfd):
    import datasets

    data = small("parquet")
    datasets.enable_progress_bars()
    capfd.readouterr()  # those of writing it
    load_images(data)
    assert capfd.readouterr().err == ""


def test_parquet_without_labels_is_refused(small):
    import datasets

    data = small("parquet")
    path = next(Path(data.root).glob("train*"))
    datasets.Dataset.from_dict({"img": ["a"], "text": ["b"]}).to_parquet(path)
    with pytest.raises(SetupError, match=r"has no column label or labels or fine_label \(it has: img, text\)"):
        load_images(data)
    datasets.Dataset.from_dict({"img": ["a"], "label": [-1]}).to_parquet(path)
    with pytest.raises(SetupError, match="column 'label': a label is -1, but classes are numbered from 0"):
        load_images(data)


def test_nothing_there_lists_what_was_looked_for_and_the_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "pictures").mkdir()
    with silent_network(monkeypatch) as tried, pytest.raises(SetupError) as caught:
        check_available(image_data("imagenet", root=str(tmp_path)))
    assert not tried.is_set()
    message = str(caught.value)
    for part in (
        "train/<class>/*.jpeg",
        "*train*.tar",
        "train*.parquet",
        "val|valid|validation|test",
        "(it has pictures)",
        "the hub (ILSVRC/imagenet-1k) is switched off",
        "data.root=/your/folder",
        "data=builtin_images",
    ):
        assert part in message
    with pytest.raises(SetupError, match=r"there is no .*/nowhere"):
        check_available(image_data("imagenet", root=str(tmp_path / "nowhere")))


def test_the_copy_that_datasets_keeps_serves_without_a_network(tmp_path):
    from datasets import ClassLabel, Features
    from datasets import Image as ImageFeature
    from datasets.arrow_writer import ArrowWriter

    folder = tmp_path / "hf/datasets/Someone___pictures/plain_text/0.0.0/abcdef"
    folder.mkdir(parents=True)
    features = Features({"img": ImageFeature(), "label": ClassLabel(names=CLASSES)})
    for split, images in (("train", files()["train"]), ("test", files()["val"])):
        with ArrowWriter(path=str(folder / f"pictures-{split}.arrow"), features=features) as writer:
            for name, png in images.items():
                writer.write({"img": {"bytes": png, "path": name}, "label": CLASSES.index(name.split("/")[0])})
            writer.finalize()
    data = image_data("cifar10", root=str(tmp_path / "none"), hub="Someone/pictures", expect=None)
    check_available(data)
    corpus = load_images(data)
    assert corpus.classes == CLASSES
    assert {split: len(images) for split, images in corpus.splits.items()} == {"train": 12, "valid": 6}
    assert corpus.splits["train"].read(4)[1] == 1


def test_a_gated_set_says_where_to_ask(tmp_path, monkeypatch):
    import datasets

    from fourierformer.data import hub

    def gated(*_, **__):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset on the Hub.")

    monkeypatch.setattr(hub, "why_unreachable", lambda data: "")
    monkeypatch.setattr(datasets, "get_dataset_split_names", gated)
    with pytest.raises(SetupError, match=r"Ask for access at https://\S+/ILSVRC/imagenet-1k, then `hf auth login`"):
        load_images(image_data("imagenet", root=str(tmp_path / "none")))

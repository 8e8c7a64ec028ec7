"""Batches are a function of (seed, step, row) alone: not of loader processes, the starting step, or the division."""

import multiprocessing
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fourierformer.data.images.batches import evaluation_batches, training_batches
from fourierformer.data.images.corpus import eval_transform, load_images, train_transform
from fourierformer.data.images.order import ImageOrder
from fourierformer.errors import SetupError
from tests.helpers.image_cases import CLASSES, augmentation, files, image_data, write

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores, on purpose


@pytest.fixture(scope="module")
def cifar(real_data, tmp_path_factory):
    data = image_data("cifar10", root=str(real_data / "cifar10"), cache=str(tmp_path_factory.mktemp("cache")))
    return load_images(data).splits["train"], train_transform(data, augmentation("cifar"), 32)


@pytest.fixture(scope="module")
def augmented():
    data = image_data("builtin_images")
    return load_images(data).splits["train"], train_transform(data, augmentation("cifar"), 32)


def order_of(images, size: int, **changes) -> ImageOrder:
    usual = {"seed": 3, "repeats": 1, "mix_batch": 32, "mixing": True, "micro_batch": None}
    return ImageOrder(len(images), size, **usual | changes)


def first(count: int, images, order, transform, start: int = 0, workers: int = 0) -> list:
    batches = training_batches(images, order, transform, start=start, workers=workers, pin=False)
    taken = [next(batches) for _ in range(count)]
    batches.close()
    return taken


def equal(ours, other) -> bool:
    return (
        (ours.step, ours.pieces, ours.unreadable) == (other.step, other.pieces, other.unreadable)
        and torch.equal(ours.rows, other.rows)
        and torch.equal(ours.labels, other.labels)
        and torch.equal(ours.images, other.images)
    )


@pytest.mark.full("decodes and augments real images several times")
def test_loader_processes_change_no_bit_of_real_augmented_images(cifar):
    images, transform = cifar
    order = order_of(images, 96, micro_batch=66)  # parts of more than a chunk, the last one uneven
    expected = first(6, images, order, transform)
    assert [batch.step for batch in expected] == [0, 0, 1, 1, 2, 2]
    assert [len(batch.images) for batch in expected] == [66, 30] * 3
    assert not torch.equal(expected[0].images, expected[2].images)
    for workers in (1, 3):
        assert all(map(equal, first(6, images, order, transform, workers=workers), expected))


@pytest.mark.parametrize("workers", [0, 2])
def test_images_decoded_once_into_memory_change_no_bit(workers):
    plain, kept = (load_images(image_data("builtin_images", in_memory=kept)).splits["train"] for kept in (False, True))
    transform = train_transform(image_data("builtin_images"), augmentation("digits"), 32)
    expected = first(3, plain, order_of(plain, 64), transform)
    assert all(map(equal, first(3, kept, order_of(kept, 64), transform, workers=workers), expected))
    assert kept.decoded.shape == (1437, 32, 32, 3)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full("augments images in processes"))])
def test_starting_at_a_step_gives_what_passing_it_gives(augmented, workers):
    images, transform = augmented
    order = order_of(images, 32)
    passed = first(6, images, order, transform, workers=workers)
    assert all(map(equal, first(3, images, order, transform, start=3, workers=workers), passed[3:]))


def test_batches_at_the_end_of_an_epoch_are_like_others(augmented):
    images, transform = augmented
    order = order_of(images, 64)
    last = order.steps_per_epoch - 1
    passed = first(3, images, order, transform, start=last, workers=1)
    assert [order.epoch(batch.step) for batch in passed] == [0, 1, 1]
    assert all(map(equal, first(2, images, order, transform, start=last + 1), passed[1:]))


def test_processes_and_micro_batches_divide_the_same_images(augmented):
    images, transform = augmented

    def by_row(**changes) -> dict:
        world = changes.pop("world", 1)
        rows = {}
        for rank in range(world):
            order = order_of(images, 64, rank=rank, world=world, **changes)
            for batch in first(len(order.micro_batches(0)), images, order, transform, start=5):
                rows |= zip(batch.rows.tolist(), zip(batch.images, batch.labels, strict=True), strict=True)
        return rows

    expected = by_row()
    assert sorted(expected) == list(range(64))
    for changes in ({"world": 2}, {"world": 4, "micro_batch": 6}, {"micro_batch": 10}, {"mixing": False, "world": 2}):
        actual = by_row(**changes)
        assert sorted(actual) == list(range(64))
        assert all(torch.equal(actual[row][0], expected[row][0]) for row in actual)
        assert all(actual[row][1] == expected[row][1] for row in actual)


def test_the_deit_recipe_on_imagenets_images(real_data, tmp_path):
    (tmp_path / "train").symlink_to(real_data / "imagenet-sample/val")
    (tmp_path / "val").symlink_to(real_data / "imagenet-sample/val")
    data = image_data("imagenet", root=str(tmp_path), expect=None)
    images = load_images(data).splits["train"]
    transform = train_transform(data, augmentation("deit"), 224)
    order = order_of(images, 24, repeats=3, mix_batch=8)
    expected = first(1, images, order, transform)
    assert expected[0].images.shape == (24, 3, 224, 224)
    assert all(map(equal, first(1, images, order, transform, workers=2), expected))
    shown = order.indices(0)
    assert len(set(shown.tolist())) == 8
    assert expected[0].labels.tolist() == shown[expected[0].rows].tolist()  # one image per class: index = label
    by_row = dict(zip(expected[0].rows.tolist(), expected[0].images, strict=True))
    assert not torch.equal(by_row[0], by_row[1])  # the same image, augmented anew


def test_the_models_own_randomness_is_left_alone(augmented):
    """A stopped run starts its loader once more than one that was not stopped: that must not shift a generator."""
    images, transform = augmented
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    for workers in (0, 1):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        first(2, images, order_of(images, 32), transform, workers=workers)
        assert (random.random(), np.random.rand(), torch.rand(1)) == expected


@pytest.fixture
def damaged(tmp_path):
    """Twelve training images, of which numbers 5 and 6 cannot be read."""
    made = files()
    for number in (1, 2):
        name = f"{CLASSES[1]}/{CLASSES[1]}_{number}.png"
        made["train"][name] = b"no image"
    data = image_data("imagenet", root=str(write(tmp_path / "root", "folder", made)), expect=None)
    return load_images(data).splits["train"], eval_transform(data, augmentation("none"), 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_replaced_by_the_next_and_reported(damaged, workers):
    images, transform = damaged
    order = order_of(images, 12, mixing=False)
    (batch,) = first(1, images, order, transform, workers=workers)
    assert sorted(batch.unreadable) == [5, 6, 6]  # 5 is replaced by 7, on the way past 6
    shown = [7 if index in (5, 6) else int(index) for index in order.indices(0)]
    assert torch.equal(batch.images, torch.stack([transform(images.read(index)[0]) for index in shown]))
    assert batch.labels.tolist() == [images.labels[index] for index in shown]


@pytest.mark.parametrize("workers", [0, 2])
def test_when_nothing_can_be_read_the_search_ends(damaged, workers):
    images, transform = damaged
    images.folder = Path("/nowhere")
    with pytest.raises(SetupError) as said:
        first(1, images, order_of(images, 4, mixing=False), transform, workers=workers)
    assert not multiprocessing.active_children()  # although the error still refers to all that was there
    assert re.fullmatch("none of 12 images in a row can be read, from .* on. Copy the data again.", str(said.value))


def test_an_evaluation_leaves_unreadable_images_out(damaged):
    images, transform = damaged
    batches = list(evaluation_batches(images, transform, batch=5, workers=0, rank=0, world=1, limit=None))
    assert [batch.rows.tolist() for batch in batches] == [[0, 1, 2, 3, 4], [7, 8, 9], [10, 11]]
    assert [batch.unreadable for batch in batches] == [(), (5, 6), ()]
    assert all(len(batch.images) == len(batch.labels) == len(batch.rows) for batch in batches)
    (nothing,) = list(evaluation_batches(_Only(images, 5), transform, batch=5, workers=0, rank=0, world=1, limit=None))
    assert (len(nothing.rows), len(nothing.images), nothing.unreadable) == (0, 0, (0,))


class _Only:
    """One image of a set."""

    def __init__(self, images, index: int):
        self.images, self.index = images, index

    def __len__(self) -> int:
        return 1

    def read(self, index: int):
        from fourierformer.data.images.sets import Unreadable

        try:
            return self.images.read(self.index)
        except Unreadable as error:
            raise Unreadable(0, error.name, error.reason) from error


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch", [7, 100, 360])
@pytest.mark.parametrize("limit", [None, 50, 1])
def test_an_evaluation_covers_every_image_exactly_once(world, batch, limit):
    data = image_data("builtin_images")
    images = load_images(data).splits["valid"]
    transform = eval_transform(data, augmentation("digits"), 32)
    ranks = [
        list(evaluation_batches(images, transform, batch=batch, workers=0, rank=rank, world=world, limit=limit))
        for rank in range(world)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [item for batches in ranks for item in batches if item is not None]
    rows = [row for item in seen for row in item.rows.tolist()]
    assert len(rows) == len(set(rows)) == (limit or 360)
    assert all(item.labels.tolist() == images.labels[item.rows.numpy()].tolist() for item in seen)
    assert all(len(item.rows) <= batch for item in seen)


class _Interleaved:
    """Image i has class i % 10: images at a distance of ten or twenty are all of one class."""

    def __len__(self):
        return 10_000

    def read(self, index):
        return Image.new("RGB", (4, 4)), index % 10


class _Sorted(_Interleaved):
    """Class by class, as folders are read: the first 1,000 images are all of one."""

    def read(self, index):
        return Image.new("RGB", (4, 4)), index // 1000


@pytest.mark.parametrize("ordered", [_Interleaved, _Sorted])
def test_a_limited_evaluation_sees_all_classes_whatever_their_order(ordered):
    data = image_data("builtin_images")
    shown = {"batch": 100, "workers": 0, "rank": 0, "world": 1, "limit": 500}
    batches = list(evaluation_batches(ordered(), eval_transform(data, augmentation("digits"), 4), **shown))
    counts = np.bincount(torch.cat([batch.labels for batch in batches]).numpy(), minlength=10)
    assert counts.sum() == 500
    assert counts.min() > 25  # 50 are expected, with a standard deviation of 6.5

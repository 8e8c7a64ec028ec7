"""configs/data and configs/augment say what their classes say, and the recipe is the paper's, value by value."""

from dataclasses import asdict, fields

import numpy as np
import pytest
import yaml

from fourierformer.data.images.corpus import load_images
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import SetupError
from tests.helpers.image_cases import CONFIGS, augmentation, image_data


@pytest.mark.parametrize("name", ["builtin_images", "cifar10", "imagenet"])
def test_a_data_config_has_exactly_the_keys_of_its_class(name):
    _check(CONFIGS / "data" / f"{name}.yaml", name, ImageData)


@pytest.mark.parametrize("name", ["cifar", "deit", "digits", "none"])
def test_an_augmentation_has_exactly_the_keys_of_its_class(name):
    assert {path.stem for path in (CONFIGS / "augment").glob("*.yaml")} == {"cifar", "deit", "digits", "none"}
    _check(CONFIGS / "augment" / f"{name}.yaml", name, AugmentConfig)


def _check(path, name: str, kind: type) -> None:
    text = path.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    assert set(values) == {field.name for field in fields(kind)}
    assert values["name"] == name
    assert text.startswith("# ")
    kind(**values)


def test_the_recipe_of_the_papers_code():
    assert asdict(augmentation("deit")) == {
        "name": "deit",
        "crop": "resized",
        "crop_scale": [0.08, 1.0],
        "flip": 0.5,
        "interpolation": "bicubic",
        "color_jitter": 0.4,
        "randaugment": "rand-m9-mstd0.5-inc1",
        "erase": 0.25,
        "mixup": 0.8,
        "cutmix": 1.0,
        "mix_probability": 1.0,
        "mix_switch": 0.5,
        "mix_batch": 256,
        "smoothing": 0.1,
        "repeats": 3,
        "eval_crop": 224 / 256,
    }


def test_published_counts_and_channel_statistics():
    imagenet, cifar = image_data("imagenet"), image_data("cifar10")
    assert imagenet.expect == {"train": 1_281_167, "valid": 50_000, "classes": 1000}
    assert (imagenet.mean, imagenet.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert cifar.expect == {"train": 50_000, "valid": 10_000, "classes": 10}
    assert (cifar.mean, cifar.std) == ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def test_the_digits_are_normalised_by_their_own_statistics():
    data = image_data("builtin_images")
    images = load_images(data).splits["train"]
    pixels = np.stack([np.asarray(images.read(index)[0]) for index in range(len(images))]) / 255
    assert pixels.mean((0, 1, 2)) == pytest.approx(data.mean, abs=5e-4)
    assert pixels.std((0, 1, 2)) == pytest.approx(data.std, abs=5e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": "web"}, "data.source=web is unknown"),
        ({"root": None}, "needs a folder with its files: data.root="),
        ({"mean": [0.5]}, "three numbers"),
        ({"std": [0.5, 0.0, 0.5]}, "data.std=0.0"),
        ({"workers": -1}, "data.workers=-1"),
        ({"expect": {"trian": 1}}, "unknown keys"),
    ],
)
def test_impossible_data_is_named(wrong, message):
    with pytest.raises(SetupError, match=message):
        image_data("cifar10", **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop_scale": [0.5, 0.1]}, "augment.crop_scale"),
        ({"flip": 1.5}, "augment.flip=1.5: a probability"),
        ({"mixup": -0.1}, "augment.mixup=-0.1"),
        ({"smoothing": 1.0}, "augment.smoothing=1.0"),
        ({"repeats": 0}, "augment.repeats=0"),
        ({"eval_crop": 0}, "augment.eval_crop=0"),
        ({"randaugment": "m9"}, "augment.randaugment=m9"),
    ],
)
def test_impossible_augmentation_is_named(wrong, message):
    with pytest.raises(SetupError, match=message):
        augmentation("deit", **wrong)

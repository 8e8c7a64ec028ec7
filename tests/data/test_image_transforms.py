"""What happens to one image: DeiT's recipe in training, and in evaluation what Pillow gives by hand."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode

from fourierformer.data.images.corpus import eval_transform, load_images, train_transform
from tests.helpers.image_cases import augmentation, image_data


def by_hand(image: Image.Image, mean, std) -> np.ndarray:
    """DeiT's evaluation, written down with Pillow and numpy: short side 256, bicubic, the middle 224 x 224."""
    width, height = image.size
    scale = 256 / min(width, height)
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    assert min(size) == round(scale * min(width, height)) == 256
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float64) / 255
    return ((pixels - mean) / std).transpose(2, 0, 1)


def test_evaluation_sees_what_deits_evaluation_sees(real_data, tmp_path):
    (tmp_path / "train").symlink_to(real_data / "imagenet-sample/val")
    (tmp_path / "val").symlink_to(real_data / "imagenet-sample/val")
    data = image_data("imagenet", root=str(tmp_path), expect=None)
    images = load_images(data).splits["valid"]
    transform = eval_transform(data, augmentation("deit"), 224)
    for index in (0, 7, 388, 999):
        image, label = images.read(index)
        assert label == index
        expected = by_hand(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        assert np.abs(transform(image).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("size", [(500, 400), (300, 451), (100, 80)])
def test_evaluation_resizes_as_deits_evaluation_does(size):
    """The photographs of the sample have a short side of 256 already, which no filter changes."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(pixels)
    expected = by_hand(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    found = eval_transform(image_data("imagenet"), augmentation("deit"), 224)(image).numpy()
    assert np.abs(found - expected).max() < 1e-5


def test_training_follows_the_recipe_in_order():
    """PAPER: resized crop 224 bicubic, flip, RandAugment instead of jitter, normalise, erase with noise at 0.25."""
    steps = train_transform(image_data("imagenet"), augmentation("deit"), 224).transforms
    names = [type(step).__name__ for step in steps]
    assert names == [
        "RandomResizedCropAndInterpolation",
        "RandomHorizontalFlip",
        "RandAugment",
        "MaybeToTensor",
        "Normalize",
        "RandomErasing",
    ]
    crop, flip, randaugment, _, normalise, erasing = steps
    assert (tuple(crop.size), tuple(crop.scale), tuple(crop.ratio)) == ((224, 224), (0.08, 1.0), (3 / 4, 4 / 3))
    assert crop.interpolation == InterpolationMode.BICUBIC
    assert flip.p == 0.5
    assert randaugment.num_layers == 2
    assert {(op.magnitude, op.magnitude_std, op.prob) for op in randaugment.ops} == {(9, 0.5, 0.5)}
    assert {op.name for op in randaugment.ops} >= {"PosterizeIncreasing", "SolarizeIncreasing", "ColorIncreasing"}
    assert torch.allclose(normalise.mean, torch.tensor([0.485, 0.456, 0.406]))
    assert (erasing.probability, erasing.mode, erasing.min_count, erasing.max_count) == (0.25, "pixel", 1, 1)


def test_crops_have_the_configs_share_and_filter():
    data, augment = image_data("imagenet"), augmentation("deit", crop_scale=[0.5, 0.9], interpolation="bilinear")
    crop, resize = (make(data, augment, 224).transforms[0] for make in (train_transform, eval_transform))
    assert tuple(crop.scale) == (0.5, 0.9)
    assert crop.interpolation == resize.interpolation == InterpolationMode.BILINEAR


def test_without_randaugment_colours_are_jittered_as_the_config_says():
    def steps(jitter: float) -> dict:
        augment = augmentation("deit", randaugment=None, color_jitter=jitter)
        return {type(step).__name__: step for step in train_transform(image_data("imagenet"), augment, 224).transforms}

    jitter = steps(0.25)["ColorJitter"]
    assert jitter.brightness == jitter.contrast == jitter.saturation == (0.75, 1.25)
    assert "ColorJitter" not in steps(0.0)


def test_small_images_are_shifted_by_up_to_an_eighth():
    transform = train_transform(image_data("builtin_images"), augmentation("digits"), 32)
    spot = Image.new("RGB", (32, 32))
    spot.putpixel((16, 16), (255, 255, 255))
    positions = set()
    for seed in range(1000):  # a position is missed by all of them with probability (80/81)^1000 = 4e-6
        torch.manual_seed(seed)
        white = (transform(spot)[0] > 0).nonzero().tolist()
        assert len(white) == 1
        positions.add(tuple(white[0]))
    assert positions == {(row, column) for row in range(12, 21) for column in range(12, 21)}  # 9 x 9 shifts


def test_without_augmentation_training_sees_what_evaluation_sees():
    data, augment = image_data("builtin_images"), augmentation("none")
    image = load_images(data).splits["train"].read(0)[0]
    assert torch.equal(train_transform(data, augment, 32)(image), eval_transform(data, augment, 32)(image))


def test_a_posterised_image_may_lose_every_bit():
    """RandAugment's increasing posterise keeps 4 - 4 = 0 bits at magnitude 10, which some Pillow releases refuse."""
    transform = train_transform(image_data("cifar10"), augmentation("cifar", randaugment="rand-m10-inc1"), 32)
    randaugment = next(step for step in transform.transforms if type(step).__name__ == "RandAugment")
    (posterise,) = [op for op in randaugment.ops if op.name.startswith("Posterize")]
    posterise.prob = 1.0
    assert posterise(Image.new("RGB", (4, 4), (255, 9, 200))).getextrema() == ((0, 0), (0, 0), (0, 0))
    posterise.magnitude = 5  # 4 - int(4 * 5 / 10) = 2 bits
    assert posterise(Image.new("RGB", (1, 1), (255, 9, 200))).getpixel((0, 0)) == (192, 0, 192)

"""Load images as batches of normalised tensors, independent of the number of loader processes.

data = ImageData(name="cifar10", root="data/cifar10", ...)        # = configs/data/cifar10.yaml
check_available(data)                                             # under two seconds, builds nothing
corpus = load_images(data, say=print)                             # folder, tar, shards, parquet, hub or embedded
order = ImageOrder(len(corpus.splits["train"]), 1024, seed=0, ...)
training_batches(corpus.splits["train"], order, train_transform(data, augment, 32), start=0, workers=2, pin=False)
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property

from PIL import Image, ImageOps

from fourierformer.data.images.batches import Transform
from fourierformer.data.images.memory import InMemorySet
from fourierformer.data.images.sets import ImageSet
from fourierformer.data.images.sources import check_source, open_splits
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.data.location import Say, disk_errors


@dataclass(frozen=True, kw_only=True)
class ImageCorpus:
    """The two splits of a data set, and notes that a reader of the results needs."""

    name: str
    classes: list[str]
    splits: dict[str, ImageSet]
    notes: list[str]

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits of the classes, the ordered labels and sampled images, independent of folder and format."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for images in self.splits.values():
            images.add_to(digest)
        return digest.hexdigest()[:12]


def check_available(data: ImageData) -> None:
    """SetupError, with ways out, unless the data is available; in less than two seconds, also without a network."""
    with disk_errors(data):
        check_source(data)


def load_images(data: ImageData, say: Say = lambda line: None) -> ImageCorpus:
    """List the images of both splits; their pixels are read later."""
    with disk_errors(data):
        splits = open_splits(data, say)
    if data.in_memory:
        splits = {split: InMemorySet(images) for split, images in splits.items()}
    classes = splits["train"].classes
    counts = {split: len(images) for split, images in splits.items()} | {"classes": len(classes)}
    return ImageCorpus(name=data.name, classes=classes, splits=splits, notes=_notes(data, counts))


def train_transform(data: ImageData, augment: AugmentConfig, size: int) -> Transform:
    """timm's transform of training images as in DeiT, image -> (3, size, size) float32, erasing included."""
    from timm.data import create_transform
    from timm.data.transforms import str_to_interp_mode
    from torchvision import transforms

    mean, std = tuple(data.mean), tuple(data.std)
    crop: dict = {"scale": tuple(augment.crop_scale), "hflip": augment.flip, "interpolation": augment.interpolation}
    colour: dict = {"color_jitter": augment.color_jitter or None, "auto_augment": augment.randaugment}
    erase: dict = {"re_prob": augment.erase, "re_mode": "pixel", "re_count": 1}
    transform = create_transform(size, is_training=True, mean=mean, std=std, **crop, **colour, **erase)
    _allow_no_bits(transform)
    resize = transforms.Resize(size, str_to_interp_mode(augment.interpolation))
    if augment.crop == "padded":  # DeiT's for small inputs: black margins of 4 pixels for 32
        transform.transforms[0:1] = [resize, transforms.RandomCrop(size, padding=size // 8)]
    elif augment.crop == "none":
        transform.transforms[0:1] = [resize, transforms.CenterCrop(size)]
    return transform


def eval_transform(data: ImageData, augment: AugmentConfig, size: int) -> Transform:
    """Resize evaluation images to size / eval_crop (256 for 224), crop the centre, normalise: (3, size, size)
    float32."""
    from timm.data import create_transform

    crop: dict = {"crop_pct": augment.eval_crop, "interpolation": augment.interpolation}
    return create_transform(size, mean=tuple(data.mean), std=tuple(data.std), **crop)


def _allow_no_bits(transform) -> None:
    """Replace the posterising of RandAugment: at magnitude 10 it leaves 0 bits (black), which newer Pillows refuse."""
    for step in transform.transforms:
        for operation in getattr(step, "ops", []):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits: int, fillcolor=None, resample=None) -> Image.Image:
    """Posterising with the arguments of timm's operations, of which it ignores fill colour and filter."""
    if bits >= 8:
        return image
    return ImageOps.posterize(image, bits) if bits > 0 else Image.new(image.mode, image.size)


def worker_count(data: ImageData, local_world: int = 1) -> int:
    """Loader processes for one of `local_world` training processes on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_world) if data.workers is None else data.workers


def _notes(data: ImageData, counts: dict[str, int]) -> list[str]:
    """Notes on differences to the published counts."""
    names = {"train": "training images", "valid": "validation images", "classes": "classes"}
    notes = [
        f"your data is not the paper's data: {counts[key]:,} {names[key]} instead of {expected:,}"
        for key, expected in (data.expect or {}).items()
        if counts[key] != expected
    ]
    if data.source == "builtin":
        notes.append("built-in digits: for a quick check only, there are no published numbers to compare with")
    return notes

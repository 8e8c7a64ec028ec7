"""The configs of image data sets (`configs/data`) and of augmentation (`configs/augment`): one field per key."""

import re
from dataclasses import dataclass
from typing import Literal

from fourierformer.data.location import DataLocation
from fourierformer.errors import SetupError, check_range

SPLITS = ("train", "valid")
COUNTS = ("train", "valid", "classes")
RANDAUGMENT = re.compile(r"rand(-(m|mstd|mmax|inc|n|p)\d+(\.\d+)?)+")  # timm ignores or asserts other policies


@dataclass(frozen=True, kw_only=True)
class ImageData(DataLocation):
    """One image data set: the location of its images (in any form of sources.py), and the normalisation of pixels."""

    expect: dict[str, int] | None = None  # published counts, any of COUNTS
    mean: list[float]  # per channel, of pixels in [0, 1]
    std: list[float]
    in_memory: bool = False  # decode all images once, before the first batch: for small images of one size
    workers: int | None = None  # loader processes per training process; None = share the cores of this machine

    def __post_init__(self):
        super().__post_init__()
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3:
                raise SetupError(f"data.{key}={list(values)} must be three numbers: red, green, blue")
        for value in self.mean:
            check_range("data.mean", value, 0, 1)
        for value in self.std:
            check_range("data.std", value, 1e-4)  # a pixel is divided by it
        check_range("data.workers", self.workers, 0, 1025)
        unknown = set(self.expect or {}) - set(COUNTS)
        if unknown:
            raise SetupError(f"data.expect has unknown keys {sorted(unknown)} (valid: {', '.join(COUNTS)})")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of training images, and the crop of evaluation images."""

    name: str
    crop: Literal["resized", "padded", "none"]  # random area and aspect | random shift by up to size/8 | resizing only
    crop_scale: list[float]  # share of the area that a resized crop keeps
    flip: float  # probability of a horizontal flip
    interpolation: Literal["bicubic", "bilinear"]
    color_jitter: float  # 0 = off; as in timm, it has no effect beside RandAugment
    randaugment: str | None  # in timm's notation: rand-m9-mstd0.5-inc1
    erase: float  # probability of erasing one rectangle with noise
    mixup: float  # alpha of the Beta distribution, 0 = off
    cutmix: float  # likewise
    mix_probability: float  # probability of mixing a batch
    mix_switch: float  # probability of cutmix instead of mixup where both are on
    mix_batch: int | None  # images that share one mixing coefficient; None = the whole global batch
    smoothing: float  # label smoothing
    repeats: int  # repeated augmentation: consecutive occurrences of an image in an epoch
    eval_crop: float  # side of the centre crop over the short side of the resized image

    def __post_init__(self):
        if len(self.crop_scale) != 2 or not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise SetupError(f"augment.crop_scale={list(self.crop_scale)} must be [smallest, largest] within (0, 1]")
        if self.randaugment is not None and not RANDAUGMENT.fullmatch(self.randaugment):
            policy = "no policy such as rand-m9-mstd0.5-inc1, or null"
            raise SetupError(f"augment.randaugment={self.randaugment} is {policy}")
        for key in ("flip", "erase", "mix_probability", "mix_switch"):
            if not 0 <= (value := getattr(self, key)) <= 1:
                raise SetupError(f"augment.{key}={value}: a probability must be between 0 and 1")
        check_range("augment.color_jitter", self.color_jitter, 0, 10)  # makes an image up to 1 + this times as bright
        for key in ("mixup", "cutmix"):
            check_range(f"augment.{key}", getattr(self, key), 0)
        check_range("augment.smoothing", self.smoothing, 0, 1)
        check_range("augment.repeats", self.repeats, 1)
        check_range("augment.mix_batch", self.mix_batch, 2)
        if not 0.1 <= self.eval_crop <= 1:  # images are resized to size / eval_crop: 2,240 pixels a side for 224
            raise SetupError(f"augment.eval_crop={self.eval_crop}: must be at least 0.1 and at most 1")

    @property
    def notes(self) -> list[str]:
        """Notes where a way of mixing has no effect beside the other values."""
        if (self.mixup or self.cutmix) and not self.mix_probability:
            return ["no images are mixed, since augment.mix_probability=0"]
        if self.mixup and self.cutmix and self.mix_switch in (0, 1):
            never = "mixup" if self.mix_switch else "cutmix"
            return [f"augment.{never} has no effect with augment.mix_switch={self.mix_switch:g}"]
        return []

    @property
    def mixing(self) -> bool:
        return self.mix_probability > 0 and (self.mixup > 0 or self.cutmix > 0)

"""Random data of the published sizes, so that training steps are timed without the data sets."""

from pathlib import Path

import numpy as np
from PIL import Image

from fourierformer.data.images.corpus import ImageCorpus
from fourierformer.data.images.sets import ImageSet
from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.sources import SPLITS
from fourierformer.tasks.classification import VisionSpec
from fourierformer.tasks.language import LanguageSpec

STEPS = 16  # of a measurement of text, at most


def random_corpus(spec: LanguageSpec | VisionSpec) -> Corpus | ImageCorpus:
    return grey_images(spec) if isinstance(spec, VisionSpec) else random_tokens(spec)


def random_tokens(spec: LanguageSpec) -> Corpus:
    """Ids are ranks by frequency, drawn with a probability of about 1 / rank (Zipf's law), because the time of an
    adaptive softmax depends on the share of rare words."""
    expect = spec.data.expect or {}
    vocabulary, tokens = expect["vocabulary"], STEPS * spec.global_batch_size * spec.model.length
    uniform = np.random.default_rng(0).random(tokens)
    ids = np.minimum(np.exp(uniform * np.log(vocabulary)).astype(np.int32) - 1, vocabulary - 1)
    return Corpus(
        name=spec.data.name,
        unit=spec.data.unit,
        vocab_size=vocabulary,
        splits=dict.fromkeys(SPLITS, ids),
        manifest={"fingerprint": None},  # nothing to compare
        notes=[],
        folder=Path(),
        sequence=expect.get("sequence"),
    )


def grey_images(spec: VisionSpec) -> ImageCorpus:
    """Times with these images exclude reading and decoding."""
    expect = spec.data.expect or {}
    classes = [str(number) for number in range(expect["classes"])]
    size = spec.model.image_size
    splits: dict[str, ImageSet] = {name: GreyImages(expect[name], classes, size) for name in ("train", "valid")}
    return ImageCorpus(name=spec.data.name, classes=classes, splits=splits, notes=[])


class GreyImages(ImageSet):
    """Equal grey images of one size, in alternating classes."""

    def __init__(self, count: int, classes: list[str], size: int):
        super().__init__(np.arange(count, dtype=np.int32) % len(classes), classes)
        self.image = Image.new("RGB", (size, size), "grey")

    def name_of(self, index: int) -> str:
        return f"grey image {index}"

    def open(self, index: int) -> Image.Image:
        return self.image

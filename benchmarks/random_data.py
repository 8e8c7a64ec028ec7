"""Data without a meaning, of the published sizes, so that training steps are timed where the data is not there."""

from pathlib import Path

import numpy as np
from PIL import Image

from fourierformer.data.images.corpus import ImageCorpus
from fourierformer.data.images.sets import ImageSet
from fourierformer.data.text.corpus import SPLITS, Corpus
from fourierformer.tasks.classification import VisionSpec
from fourierformer.tasks.language import LanguageSpec

STEPS = 16  # as many as a measurement of text may take


def random_corpus(spec: LanguageSpec | VisionSpec) -> Corpus | ImageCorpus:
    return grey_images(spec) if isinstance(spec, VisionSpec) else random_tokens(spec)


def random_tokens(spec: LanguageSpec) -> Corpus:
    """Ids are ranks by frequency. They are drawn with a probability of about 1 / rank (Zipf's law), since the time of
    an adaptive softmax depends on how often words are rare."""
    expect = spec.data.expect or {}
    vocabulary, tokens = expect["vocabulary"], STEPS * spec.global_batch_size * spec.model.length
    uniform = np.random.default_rng(0).random(tokens)
    ids = np.minimum(np.exp(uniform * np.log(vocabulary)).astype(np.int32) - 1, vocabulary - 1)
    return Corpus(
        name=spec.data.name,
        unit=spec.data.unit,
        vocab_size=vocabulary,
        splits=dict.fromkeys(SPLITS, ids),
        manifest={"fingerprint": None},  # of nothing that could be compared
        notes=[],
        folder=Path(),
        sequence=expect.get("sequence"),
    )


def grey_images(spec: VisionSpec) -> ImageCorpus:
    """Reading and decoding of the real images come on top."""
    expect = spec.data.expect or {}
    classes = [str(number) for number in range(expect["classes"])]
    splits: dict[str, ImageSet] = {
        split: GreyImages(expect[split], classes, spec.model.image_size) for split in ("train", "valid")
    }
    return ImageCorpus(name=spec.data.name, classes=classes, splits=splits, notes=[])


class GreyImages(ImageSet):
    """Equal grey images of one size, whose classes take turns."""

    def __init__(self, count: int, classes: list[str], size: int):
        super().__init__(np.arange(count, dtype=np.int32) % len(classes), classes)
        self.image = Image.new("RGB", (size, size), "grey")

    def name_of(self, index: int) -> str:
        return f"grey image {index}"

    def open(self, index: int) -> Image.Image:
        return self.image

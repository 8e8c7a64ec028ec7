"""The built-in images: scikit-learn's handwritten digits."""

import numpy as np
from PIL import Image

from fourierformer.data.images.sets import ImageSet


class DigitsSet(ImageSet):
    """scikit-learn's handwritten digits, 8 x 8 in 17 shades of grey, as 32 x 32 RGB; 1,437 to train on, 360 held out,
    drawn class by class with a fixed seed, so that the classes keep their shares."""

    SIDE = 32
    HELD_OUT = 360
    levels = 17

    def __init__(self, split: str):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        numbers, labels = np.arange(len(digits.target)), digits.target
        chosen = train_test_split(numbers, test_size=self.HELD_OUT, stratify=labels, random_state=0)
        self.numbers = np.sort(chosen[0 if split == "train" else 1])
        self.shades = digits.images[self.numbers].astype(np.uint8)  # 0 to 16
        super().__init__(digits.target[self.numbers].astype(np.int32), [str(digit) for digit in range(10)])

    def name_of(self, index: int) -> str:
        return f"digit {self.numbers[index]}"

    def open(self, index: int) -> Image.Image:
        small = Image.fromarray(np.rint(self.shades[index] * (255 / 16)).astype(np.uint8))
        return small.resize((self.SIDE, self.SIDE), Image.Resampling.BICUBIC).convert("RGB")

    def content(self, index: int) -> bytes:
        return self.shades[index].tobytes()  # not the enlarged image, which another Pillow may round differently

    def pixels(self, index: int) -> np.ndarray:
        """The digit as it was scanned, 8 x 8 in 17 shades."""
        return self.shades[index][..., None]

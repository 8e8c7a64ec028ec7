"""The config of a data set of tokens, `configs/data/<name>.yaml`: every key there is a field here."""

from dataclasses import dataclass, field
from typing import Literal

from fourierformer.data.location import DataLocation
from fourierformer.data.text.bpe import BYTES
from fourierformer.errors import SetupError

COUNTS = ("train", "valid", "test", "vocabulary", "lines", "sequence")
# the metric of a model of these tokens: exp(mean loss) for words and pairs of bytes, mean loss / ln 2 for the others
METRIC_OF_UNIT = {"word": "ppl", "bpe": "ppl", "byte": "bpc", "pixel": "bpd"}
SWAPPED = "_swapped"  # the end of a protocol's name where a share of the words is swapped (swap.py)


@dataclass(frozen=True, kw_only=True)
class TextData(DataLocation):
    """One data set of tokens: the location of its text or images, and their conversion to tokens."""

    # bpe: byte pairs (bpe.py); pixel: images, each a sequence of its own (pixels.py)
    unit: Literal["word", "byte", "pixel", "bpe"] = "word"
    cutoffs: list[int] = field(default_factory=list)  # adaptive softmax: first id of each tail; empty = plain softmax
    expect: dict[str, int] | None = None  # published counts, any of COUNTS
    byte_splits: list[int] | None = None  # one file cut into train, valid, test by these lengths
    vocabulary_size: int | None = None  # keep the most frequent words only, `<unk>` for the rest; bpe: most tokens

    def __post_init__(self):
        super().__post_init__()
        if self.unit not in METRIC_OF_UNIT:
            raise SetupError(f"data.unit={self.unit} is unknown (valid: {', '.join(METRIC_OF_UNIT)})")
        if self.unit == "bpe" and (self.vocabulary_size or 0) <= BYTES:
            raise SetupError(f"data.unit=bpe needs a vocabulary of more than {BYTES} bytes: data.vocabulary_size=8192")
        if self.unit not in ("word", "bpe") and self.vocabulary_size is not None:
            raise SetupError("data.vocabulary_size is for words; bytes always have 256: data.vocabulary_size=null")
        if self.vocabulary_size is not None and self.vocabulary_size < 3:
            raise SetupError(f"data.vocabulary_size={self.vocabulary_size} must be at least 3: <eos>, <unk> and a word")
        if self.cutoffs != sorted(set(self.cutoffs)) or min(self.cutoffs, default=1) < 1:
            raise SetupError(f"data.cutoffs={self.cutoffs} must grow, from at least 1: they are first ids of clusters")
        splits = self.byte_splits
        if splits is not None and (self.unit != "byte" or len(splits) != 3 or min(splits) < 1):
            valid = "three lengths (train, valid, test), with data.unit=byte"
            raise SetupError(f"data.byte_splits={splits} must be {valid}")
        unknown = set(self.expect or {}) - set(COUNTS)
        if unknown:
            raise SetupError(f"data.expect has unknown keys {sorted(unknown)} (valid: {', '.join(COUNTS)})")

    @property
    def settings(self) -> dict:
        """The keys that change the tokens: with the text itself they give the fingerprint of a prepared copy."""
        return {
            "unit": self.unit,
            "source": self.source,
            "byte_splits": None if self.byte_splits is None else [int(length) for length in self.byte_splits],
            "vocabulary_size": self.vocabulary_size,
            # with a dict.txt, the rank of <unk> follows from the published totals (words.listed_words)
            "expect": None if self.expect is None else {key: int(value) for key, value in self.expect.items()},
        }

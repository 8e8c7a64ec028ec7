"""What a text data set is, as `configs/data/<name>.yaml` states it: every key there is a field here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fourierformer.errors import SetupError

COUNTS = ("train", "valid", "test", "vocabulary", "lines", "sequence")
UNITS = ("word", "byte", "pixel")


@dataclass(frozen=True, kw_only=True)
class TextData:
    """One data set of tokens: where its text, or its images, come from and how they become tokens."""

    name: str
    unit: Literal["word", "byte", "pixel"] = "word"  # pixel: images, each a sequence of its own (pixels.py)
    source: Literal["files", "builtin"] = "files"
    root: str | None = None  # folder with the text or image files, or one text file (bytes only)
    cache: str = "data/prepared"  # tokenised copies; the root is only ever read
    hub: str | None = None  # where `datasets` finds it when the root has no files
    hub_config: str | None = None
    cutoffs: list[int] = field(default_factory=list)  # adaptive softmax: first id of each tail; empty = plain softmax
    expect: dict[str, int] | None = None  # published counts, any of COUNTS
    byte_splits: list[int] | None = None  # one file cut into train, valid, test by these lengths
    vocabulary_size: int | None = None  # keep the most frequent words only, `<unk>` for the rest

    def __post_init__(self):
        if self.unit not in UNITS:
            raise SetupError(f"data.unit={self.unit} is unknown (valid: {', '.join(UNITS)})")
        if self.source not in ("files", "builtin"):
            raise SetupError(f"data.source={self.source} is unknown (valid: files, builtin)")
        if self.source == "files" and not self.root:
            raise SetupError(f"data '{self.name}' needs a folder with its files: data.root=/some/folder")
        if self.unit != "word" and self.vocabulary_size is not None:
            raise SetupError("data.vocabulary_size is for words; bytes always have 256 (data.vocabulary_size=null)")
        if self.vocabulary_size is not None and self.vocabulary_size < 3:
            raise SetupError(f"data.vocabulary_size={self.vocabulary_size} must be at least 3: <eos>, <unk> and a word")
        splits = self.byte_splits
        if splits is not None and (self.unit != "byte" or len(splits) != 3 or min(splits) < 1):
            raise SetupError(
                f"data.byte_splits={splits} must be three lengths (train, valid, test), with data.unit=byte"
            )
        unknown = set(self.expect or {}) - set(COUNTS)
        if unknown:
            raise SetupError(f"data.expect has unknown keys {sorted(unknown)} (valid: {', '.join(COUNTS)})")

    @property
    def settings(self) -> dict:
        """What decides the tokens, apart from the text itself: part of the fingerprint of a prepared copy."""
        return {
            "unit": self.unit,
            "source": self.source,
            "byte_splits": None if self.byte_splits is None else [int(length) for length in self.byte_splits],
            "vocabulary_size": self.vocabulary_size,
            # with a dict.txt, the place of <unk> follows from the published totals (words.listed_words)
            "expect": None if self.expect is None else {key: int(value) for key, value in self.expect.items()},
        }

    @property
    def root_path(self) -> Path:
        return Path(self.root or ".").expanduser()

    @property
    def cache_path(self) -> Path:
        return Path(self.cache).expanduser()

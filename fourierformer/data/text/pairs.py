"""Pairs of texts, a source and its answer, as rows of token ids. A token is a character."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fourierformer.data.text import dates
from fourierformer.errors import SetupError, check_range

PAD, BEGIN, END = 0, 1, 2
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ,.-/"
VOCABULARY = 3 + len(CHARACTERS)
IDS = {character: 3 + number for number, character in enumerate(CHARACTERS)}
DAYS = (dates.LAST - dates.FIRST).days + 1


@dataclass(frozen=True, kw_only=True)
class PairsData:
    """The keys of configs/data/builtin_dates.yaml."""

    name: str
    pairs: Literal["dates"]  # kind of the pairs
    seed: int  # of the data, for the held-out pairs and the spellings; not the seed of the run
    held_out: int  # pairs of valid, and as many of test

    def __post_init__(self):
        check_range("data.held_out", self.held_out, 1, DAYS // 2)

    @property
    def train(self) -> int:
        """The number of training pairs."""
        return DAYS - 2 * self.held_out


@dataclass(frozen=True)
class Pairs:
    """One split. Each row is a text, END, and PAD up to the longest."""

    texts: list[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def sources(self) -> np.ndarray:
        return _rows([source for source, _ in self.texts])

    @cached_property
    def answers(self) -> np.ndarray:
        return _rows([answer for _, answer in self.texts])


@dataclass(frozen=True)
class PairsCorpus:
    name: str
    splits: dict[str, Pairs]
    notes: tuple[str, ...] = ()


def load_pairs(data: PairsData) -> PairsCorpus:
    """Compute the pairs of a config, without a download or a cache."""
    splits = dates.pairs(data.seed, data.held_out)
    return PairsCorpus(data.name, {split: Pairs(texts) for split, texts in splits.items()})


def encode(text: str) -> list[int]:
    """Token ids of a text in lower case, with END. SetupError for a character that no text of the data has."""
    text = text.strip().lower()
    unknown = sorted(set(text) - set(CHARACTERS))
    if unknown or not text:
        problem = f"not {unknown[0]!r}" if unknown else "the text is empty"
        raise SetupError(f"the model knows {CHARACTERS!r} only: {problem}")
    return [*(IDS[character] for character in text), END]


def decode(ids) -> str:
    """The text of ids up to END; a PAD or BEGIN before it, of an untrained model, becomes ?."""
    text = ""
    for number in map(int, ids):
        if number == END:
            break
        text += CHARACTERS[number - 3] if number > END else "?"
    return text


def _rows(texts: list[str]) -> np.ndarray:
    """(texts, longest) ids. All at once: one by one, `encode` would take a second for the training pairs."""
    width = max(map(len, texts)) + 1
    table = bytes.maketrans(f"{CHARACTERS}\n".encode(), bytes([*IDS.values(), END]))
    joined = b"".join(f"{text}\n".encode().translate(table).ljust(width, bytes([PAD])) for text in texts)
    return np.frombuffer(joined, np.uint8).reshape(-1, width)

"""Convert words to ids by the rule of the paper's code, about ten million tokens a second in plain Python and numpy.

The rule (of Transformer-XL's vocabulary, which the paper's code uses): each line, blank ones too, is `line.split()`
plus `<eos>`; no lower-casing; the vocabulary is counted on the training text alone; `<eos>` has id 0, then come the
words by falling count, equal counts by first appearance. `<unk>` is a word like any other.

One pass assigns provisional ids in order of first appearance (a growing dict), then a numpy look-up table converts them
to final ones: Python reads every token only once.
"""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fourierformer.errors import SetupError

EOS, UNK = "<eos>", "<unk>"


class Growing(dict):
    """A dict from words to provisional ids, in which a new word gets the next id."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number

    def encode(self, text: str) -> np.ndarray:
        words = line_words(text)
        return np.fromiter(map(self.__getitem__, words), np.uint32, len(words))


@dataclass(frozen=True)
class Vocabulary:
    words: list[str]  # in id order
    table: np.ndarray  # provisional id -> final id, -1 for words without one


def line_words(text: str) -> list[str]:
    """The words of whole lines, with `<eos>` for each line end. Splitting all lines at once is four times faster."""
    return text.replace("\n", f" {EOS} ").split()


def whole_lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Texts of whole lines from pieces that are cut anywhere. Line ends are read as in Python's text files, and a byte
    order mark at the beginning, which editors of Windows write, is no part of the first word."""
    for number, raw in enumerate(_cut_at_lines(pieces)):
        if text := _decode(raw if number else raw.removeprefix(BOM_UTF8)):
            yield text if text.endswith("\n") else text + "\n"


def _cut_at_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield rest + piece[:cut]
            rest = piece[cut:]
        else:
            rest += piece
    if rest:
        yield rest


def rank_words(growing: Growing, counts: np.ndarray, size: int | None = None) -> Vocabulary:
    """The vocabulary of the training text, from the count of each provisional id in it."""
    names = list(growing)
    order = np.argsort(-counts[1:], kind="stable") + 1  # equal counts stay in the order of first appearance
    words = [names[i] for i in order]
    if size is not None and len(counts) > size:
        order = order[[word != UNK for word in words]]
        order, dropped = order[: size - 2], order[size - 2 :]
        rest = counts[dropped].sum() + (counts[growing[UNK]] if UNK in words else 0)  # the count of <unk> from now on
        words = [names[i] for i in order]
        words.insert(int(np.count_nonzero(counts[order] >= rest)), UNK)
    words = [EOS, *words]
    ids = {word: number for number, word in enumerate(words)}
    unknown = ids.get(UNK, -1)
    return Vocabulary(words, np.array([ids.get(name, unknown) for name in names], np.int64))


def listed_words(path: Path, expect: dict[str, int] | None, size: int | None = None) -> list[str]:
    """Words in id order from a `word count` list of the whole training text without `<eos>` and `<unk>`.

    The count of `<unk>` is the difference to the published totals (WikiText-103: 103,227,021 tokens with eos, less
    1,801,350 lines, less 100,983,712 listed words = 441,959), so its rank is known; only the order of equal counts can
    differ from a vocabulary counted on the text itself. Entries with count 0 are padding. size: as in `rank_words`.
    """
    try:
        pairs = [line.rsplit(" ", 1) for line in path.read_text(encoding="utf-8").split("\n") if line]
        counts = {word: int(count) for word, count in pairs if int(count) > 0}
    except ValueError as error:
        raise SetupError(f"{path} is not a list of 'word count' lines: {error}") from None
    counts.pop(EOS, None)
    totals = expect or {}
    if UNK not in counts and "train" in totals and "lines" in totals:
        rest = totals["train"] - totals["lines"] - sum(counts.values())
        if rest > 0:
            counts[UNK] = rest
    listed = Growing({word: number for number, word in enumerate([EOS, *counts])})
    return rank_words(listed, np.array([0, *counts.values()]), size).words  # equal counts stay in the file's order


def fixed_table(words: list[str], growing: Growing) -> Vocabulary:
    """A given vocabulary: the first words of `growing`; the words after them are unknown."""
    table = np.full(len(growing), words.index(UNK) if UNK in words else -1, np.int64)
    table[: len(words)] = np.arange(len(words))
    return Vocabulary(words, table)


def _decode(raw: bytes) -> str:
    text = raw.decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

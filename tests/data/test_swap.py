"""Swapped words: which and how many, in the text of a few lines and in WikiText-103."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from fourierformer.data.text.swap import STOP_WORDS, swap_words
from fourierformer.data.text.words import EOS, UNK, line_words
from fourierformer.errors import SetupError


def corpus_of(text: str, *more: str, split: str = "test", unit: str = "word") -> SimpleNamespace:
    """A corpus with the words of this text and `more` words as its vocabulary."""
    tokens = line_words(text)
    words = list(dict.fromkeys([EOS, *more, *tokens]))
    ids = {word: number for number, word in enumerate(words)}
    splits = {split: np.array([ids[word] for word in tokens], np.uint16 if len(ids) < 2**16 else np.uint32)}
    return SimpleNamespace(name="a_text", unit=unit, words=words, ids=ids, splits=splits)


def lines(corpus: SimpleNamespace, tokens: np.ndarray) -> list[list[str]]:
    text = " ".join(corpus.words[token] for token in tokens)
    return [line.split() for line in text.split(EOS)][:-1]


TEXT = "\n".join(" ".join(f"w{line}x{word}" for word in range(20)) for line in range(12)) + "\n"


def letters_and_digits(line: str) -> int:
    """TextAttack's count of words, letter by letter."""
    count, inside = 0, False
    for letter in line:
        begins = letter.isalnum() and not inside
        inside = letter.isalnum() or (inside and letter in "'-_*@")
        count += begins
    return count


@pytest.mark.full("a large vocabulary")
@pytest.mark.parametrize(("split", "wanted", "lost"), [("valid", 3148, 0), ("test", 3657, 1)])
def test_the_counts_of_wikitext_103(real_data, split, wanted, lost):
    """TextAttack's rule: max(int(.015 n), 1) of the n words of each line. One line of the test text is "' and"."""
    text = (real_data / "wikitext-103" / f"wiki.{split}.tokens").read_text(encoding="utf-8")
    counts = [letters_and_digits(line) for line in text.splitlines()]
    assert sum(max(int(0.015 * count), 1) for count in counts if count) == wanted
    corpus = corpus_of(text, "AAA", UNK, split=split)
    tokens, swapped = swap_words(corpus, split, 0.015)
    assert swapped.sum() == wanted - lost
    changed = tokens != corpus.splits[split]
    assert set(swapped[changed]) == {1}
    stayed = corpus.splits[split][(swapped > 0) & ~changed]
    assert {corpus.words[token] for token in stayed} <= {UNK, "AAA"}


def test_each_line_loses_its_share_of_words_and_at_least_one():
    corpus = corpus_of(TEXT + "one\n\n" + " ".join(map(str, range(39))) + "\n", "AAA")
    for share, counts in {0.01: [1] * 14, 0.1: [2] * 12 + [1, 3], 0.5: [10] * 12 + [1, 19]}.items():
        tokens, _ = swap_words(corpus, "test", share)
        found = lines(corpus, tokens)
        assert [line.count("AAA") for line in found if line] == counts
        assert [len(line) for line in found] == [len(line.split()) for line in corpus_lines(corpus)]


def corpus_lines(corpus: SimpleNamespace) -> list[str]:
    return [" ".join(line) for line in lines(corpus, corpus.splits["test"])]


def test_no_share_swaps_nothing():
    corpus = corpus_of(TEXT)  # not even a vocabulary with AAA is needed
    tokens, swapped = swap_words(corpus, "test", 0.0)
    assert (tokens == corpus.splits["test"]).all()
    assert swapped.sum() == 0


def test_the_draw_depends_on_seed_split_and_line_alone():
    corpus = corpus_of(TEXT, "AAA")
    tokens, swapped = swap_words(corpus, "test", 0.2)
    again, _ = swap_words(corpus, "test", 0.2)
    assert (tokens == again).all()
    assert (swapped != swap_words(corpus, "test", 0.2, seed=1)[1]).any()
    head, tail = corpus_of(TEXT[: len(TEXT) // 2], "AAA"), corpus_of("other words\n" + TEXT.split("\n", 1)[1], "AAA")
    assert (swap_words(head, "test", 0.2)[1][:100] == swapped[:100]).all()
    assert (swap_words(tail, "test", 0.2)[1][3:] == swapped[21:]).all()
    corpus.splits["valid"] = corpus.splits["test"]
    assert (swapped != swap_words(corpus, "valid", 0.2)[1]).any()


def test_a_larger_share_swaps_the_words_of_a_smaller_one_too():
    corpus = corpus_of(TEXT, "AAA")
    counts = [swap_words(corpus, "test", share)[1] for share in (0.05, 0.2, 0.6, 1.0)]
    for less, more in pairwise(counts):
        assert (less <= more).all()
        assert less.sum() < more.sum()


def test_stop_words_and_signs_stay_and_unknown_words_are_unk():
    """A capital letter makes another word; of "3.5" both are swapped, and "AAA.AAA" is unknown."""
    text = f"The cat and the dog weren't @-@ there , ' s 3.5 don {UNK}\nof the\n"
    corpus = corpus_of(text, "AAA")
    tokens, swapped = swap_words(corpus, "test", 1.0)
    first, second = lines(corpus, tokens)
    assert " ".join(first) == f"AAA AAA and the AAA weren't @-@ there , ' s {UNK} don {UNK}"
    assert second == ["of", "the"]
    assert swapped.tolist() == [1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0]


def test_the_share_is_of_all_words_and_stop_words_among_them_count():
    """Ten of twenty are stop words: 30 % are six of the other ten, not three."""
    corpus = corpus_of(" ".join(f"the w{number}" for number in range(10)) + "\n", "AAA")
    tokens, swapped = swap_words(corpus, "test", 0.3)
    assert swapped.sum() == 6
    assert lines(corpus, tokens)[0].count("the") == 10


def test_all_words_of_a_token_are_swapped_in_their_places():
    """Words that are shorter and longer than AAA: the places behind a swapped one move."""
    for word, expected in {"3.5": "AAA.AAA", "1,000.25": "AAA,AAA.AAA", "thousands/x": "AAA/AAA"}.items():
        corpus = corpus_of(f"{word}\n", "AAA", UNK, expected)
        assert lines(corpus, swap_words(corpus, "test", 1.0)[0]) == [[expected]]


def test_lines_of_the_same_length_lose_other_words():
    corpus = corpus_of(TEXT, "AAA")
    by_line = swap_words(corpus, "test", 0.2)[1].reshape(12, 21)
    assert len({tuple(line) for line in by_line.tolist()}) == 12  # of 4,845 choices of 4 words out of 20


def test_a_last_line_without_an_end_loses_its_words_too():
    corpus = corpus_of(TEXT, "AAA")
    whole = swap_words(corpus, "test", 0.2)[1]
    corpus.splits["test"] = corpus.splits["test"][:-1]
    assert (swap_words(corpus, "test", 0.2)[1] == whole[:-1]).all()
    assert whole[-21:].sum() == 4


def test_a_vocabulary_without_aaa_has_unk_in_its_place():
    corpus = corpus_of("cats\n", UNK)
    assert lines(corpus, swap_words(corpus, "test", 0.1)[0]) == [[UNK]]


def test_every_stop_word_is_listed_once():
    assert len(set(STOP_WORDS.split())) == len(STOP_WORDS.split()) == 179


@pytest.mark.parametrize(("unit", "message"), [("byte", "is read as bytes"), ("word", "neither AAA nor <unk>")])
def test_a_text_whose_words_cannot_be_swapped_is_refused(unit, message):
    with pytest.raises(SetupError, match=message):
        swap_words(corpus_of("cats\n", unit=unit), "test", 0.1)

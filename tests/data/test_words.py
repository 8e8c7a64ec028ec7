"""The vocabulary rule, against a second implementation that follows the paper's description word for word."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourierformer.data.text.words import EOS, UNK, Growing, listed_words, rank_words, whole_lines
from fourierformer.errors import SetupError


def rule(text: str) -> tuple[list[str], list[int]]:
    """Words in id order and ids, the slow way."""
    sentences = [[*line.split(), EOS] for line in text.splitlines()]
    counter = Counter(word for sentence in sentences for word in sentence if word != EOS)
    words = [EOS] + [word for word, _ in counter.most_common()]  # ties: first seen first
    return words, [words.index(word) for sentence in sentences for word in sentence]


@given(st.lists(st.lists(st.sampled_from("a b c d e f Ä <unk> = @-@ The the".split())), min_size=1))  # noqa: SIM905
def test_ids_follow_the_rule(lines):
    text = "".join(" ".join(line) + " \n" for line in lines)
    growing = Growing({EOS: 0})
    ids = growing.encode(text)
    vocabulary = rank_words(growing, np.bincount(ids))
    words, expected = rule(text)
    assert vocabulary.words == words
    assert vocabulary.table[ids].tolist() == expected


@given(st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "ignore")), st.integers(1, 7))
def test_pieces_may_be_cut_anywhere_and_lines_end_as_in_python_files(tmp_path_factory, text, width):
    raw = text.encode()
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes(raw)
    with open(path, encoding="utf-8-sig") as file:
        expected = [line.split() for line in file]
    pieces = [raw[i : i + width] for i in range(0, len(raw), width)]
    joined = "".join(whole_lines(pieces))
    assert [line.split() for line in joined.split("\n")[:-1]] == expected
    assert joined == "" or joined.endswith("\n")


def test_a_limited_vocabulary_keeps_the_most_frequent_and_ranks_unk_by_what_it_stands_for():
    growing = Growing({EOS: 0})
    ids = growing.encode("a a a a a b b b b c c d d e\n")  # counts 5 4 2 2 1
    vocabulary = rank_words(growing, np.bincount(ids), size=4)
    assert vocabulary.words == [EOS, "a", UNK, "b"] or vocabulary.words == [EOS, UNK, "a", "b"]
    # c, d, e fall out: 2 + 2 + 1 = 5 occurrences, as many as "a", which stays first
    assert vocabulary.words == [EOS, "a", UNK, "b"]
    assert vocabulary.table[ids].tolist() == [1] * 5 + [3] * 4 + [2] * 5 + [0]


def test_a_limit_counts_an_unk_of_the_text_with_the_words_that_fall_out():
    growing = Growing({EOS: 0})
    ids = growing.encode("<unk> a a b b c\n")
    vocabulary = rank_words(growing, np.bincount(ids), size=4)
    assert vocabulary.words == [EOS, "a", "b", UNK]
    assert vocabulary.table[ids].tolist() == [3, 1, 1, 2, 2, 3, 0]


@pytest.mark.parametrize("size", [3, 4])
def test_a_limit_that_takes_the_whole_vocabulary_changes_nothing(size):
    growing = Growing({EOS: 0})
    counts = np.bincount(growing.encode("a b b\n"))
    assert rank_words(growing, counts, size=size).words == rank_words(growing, counts).words == [EOS, "b", "a"]


def test_a_listed_vocabulary_places_unk_by_the_published_totals(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("the 50\nof 30\nto 30\nrare 2\nmadeupword0000 0\n")
    # 200 tokens - 40 lines - 112 listed = 48 times <unk>
    assert listed_words(path, {"train": 200, "lines": 40}) == [EOS, "the", UNK, "of", "to", "rare"]
    assert listed_words(path, None) == [EOS, "the", "of", "to", "rare"]


def test_a_bad_list_is_named(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("the many\n")
    with pytest.raises(SetupError, match=r"dict\.txt is not a list"):
        listed_words(path, None)

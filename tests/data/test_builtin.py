"""The built-in corpus: real English, enough of it, the same each time, and cleanly split."""

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fourierformer.data.text import builtin
from fourierformer.data.text.corpus import TextData, load_corpus

# the most frequent words of English prose (any frequency list begins so)
ENGLISH = ["the", "of", "and", "to", "a", "in", "is", "that", "for", "it", "be", "as", "with", "this", "not", "by"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return load_corpus(TextData(name="builtin_text", source="builtin", vocabulary_size=8192, cache=str(cache)))


def test_it_is_at_least_300_000_words_of_real_english():
    words = [
        word for lines in builtin.corpus().values() for line in lines for word in re.findall("[a-z]+", line.lower())
    ]
    assert len(words) >= 300_000
    counts = Counter(words)
    assert counts.most_common(1)[0][0] == "the"
    assert set(ENGLISH) <= {word for word, _ in counts.most_common(60)}
    share = sum(counts[word] for word in ENGLISH) / len(words)
    assert 0.2 < share < 0.4  # these sixteen make up about a quarter of English text
    entropy = -sum(n / len(words) * math.log2(n / len(words)) for n in counts.values())
    assert 8.5 < entropy < 11.5  # bits per word of English unigrams: about 9.7 (Shannon 1951 has 11.82 by Zipf's law)


def test_splits_share_no_paragraph_and_are_of_the_intended_size(corpus):
    lines = builtin.corpus()
    everything = [line.lower() for part in lines.values() for line in part]
    assert len(everything) == len(set(everything))
    assert 14_000 <= len(corpus.splits["valid"]) <= 25_000
    assert 14_000 <= len(corpus.splits["test"]) <= 25_000
    assert len(corpus.splits["train"]) >= 300_000


def test_words_and_unknown_words(corpus):
    assert corpus.vocab_size == len(corpus.words) == 8192
    assert corpus.words[0] == "<eos>"
    unknown = corpus.ids["<unk>"]
    assert (corpus.splits["train"] == unknown).mean() < 0.03
    assert (corpus.splits["valid"] == unknown).mean() < 0.06
    assert int(max(tokens.max() for tokens in corpus.splits.values())) < 8192
    assert np.bincount(corpus.splits["train"])[0] == len(builtin.corpus()["train"])  # <eos> per line


def test_prompts_are_split_as_the_text_was(corpus):
    ids = corpus.encode("The file's name (see open()).\nReturn it.")
    assert corpus.decode(ids) == "the file's name ( see open ( ) ) .\nreturn it ."
    assert corpus.decode(corpus.encode("xyzzyplugh")) == "<unk>"


@pytest.mark.full("makes the text once more")
def test_it_is_the_same_every_time(corpus, tmp_path):
    builtin.corpus.cache_clear()
    again = load_corpus(TextData(name="builtin_text", source="builtin", vocabulary_size=8192, cache=str(tmp_path)))
    assert again.manifest["outputs"] == corpus.manifest["outputs"]
    assert again.folder.name == corpus.folder.name
    assert any("Python 3." in note and "numpy" in note for note in corpus.notes)


def test_help_topics_may_be_absent(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    monkeypatch.setattr(builtin, "_python_files", lambda: [])
    assert list(builtin._documents()) == []


def test_the_text_without_help_topics_has_another_fingerprint_and_a_note(monkeypatch):
    with_topics = builtin.source("word")
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    without = builtin.source("word")
    for source in (with_topics, without):
        assert source.inputs[0].name in source.notes[0]
    assert [entry.name for entry in without.inputs] != [entry.name for entry in with_topics.inputs]
    assert "without help topics" in without.notes[0]


def test_bytes_are_the_same_paragraphs(corpus):
    data = TextData(name="builtin_bytes", unit="byte", source="builtin", cache=str(corpus.folder.parent))
    text = load_corpus(data).splits["test"].tobytes().decode()
    assert text == "".join(line + "\n" for line in builtin.corpus()["test"])
    assert load_corpus(replace(data, name="other")).vocab_size == 256


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        ("Return the number of items\nin the list, or zero.", ["Return the number of items in the list, or zero."]),
        (">>> the_sum(of=1, a=2) is in the list\n3", []),
        ("x = f(a, b) + g[c] for c in the list(d)", []),
        ("Notes\n-----\nThis is a sentence about the thing.", ["This is a sentence about the thing."]),
        ("too short the a", []),
    ],
)
def test_prose_is_kept_and_code_is_not(block, kept):
    assert list(builtin.paragraphs_of(block)) == kept

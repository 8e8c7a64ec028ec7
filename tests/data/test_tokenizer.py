"""tokenizer.json of exported models: the ids of `Corpus.encode`, by the library `tokenizers`."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers", reason='transformers is not installed: pip install -e ".[transformers]"')

from fourierformer.data.text import bpe, builtin  # noqa: E402 - after the check that it is there
from fourierformer.data.text.corpus import Corpus  # noqa: E402
from fourierformer.data.text.tokenizer import PADDING, tokenizer_files  # noqa: E402

WORDS = ["<eos>", "a", "<unk>", "b", "<eos>x", "##b"]


def both(unit, words=None, source="files"):
    size = 256 if words is None else len(words)
    facts = {"unit": unit, "vocabulary": size, "words": words, "source": source, "sequence": None}
    corpus = Corpus.of_facts("some", facts)
    return corpus, tokenizers.Tokenizer.from_str(json.dumps(tokenizer_files(corpus, 8)["tokenizer.json"]))


@pytest.mark.parametrize(
    "text",
    [
        "a b\n\n a  unknown\n", "\n\na", "  \n ", "", "a b\n", "a\x1cb\x1fa\x85b\u3000a\xa0b",
        "a <eos> b<eos> <eos>x ##b <unk> <eos>", "<eos> <eos>\n<eos> a",
    ],
)  # fmt: skip
def test_words_and_line_ends_are_ours(text):
    corpus, tokenizer = both("word", WORDS)
    ids = tokenizer.encode(text).ids
    assert ids == corpus.encode(text)
    assert tokenizer.decode(ids) == corpus.decode(ids)


def test_bytes_are_ours():
    corpus, tokenizer = both("byte")
    text = "one\n\ttwo <0x41> é ∑ \U0001f600 \0"
    assert tokenizer.encode(text).ids == corpus.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_byte_pairs_are_ours():
    texts = ["one two three\nfour five  six \u00e9\n"] * 20
    facts = {"unit": "bpe", "vocabulary": 270, "words": None, "source": "files", "sequence": None}
    own = bpe.trained(texts, 270)
    corpus = Corpus.of_facts("some", facts | {"vocabulary": own.get_vocab_size(), "tokenizer": own.to_str()})
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_files(corpus, 8)["tokenizer.json"]))
    for text in [texts[0], "\n\nother \u2211 words\n", ""]:
        ids = tokenizer.encode(text).ids
        assert ids == corpus.encode(text)
        assert tokenizer.decode(ids) == corpus.decode(ids)
    assert tokenizer.token_to_id(PADDING) == corpus.vocab_size


def test_the_words_and_signs_of_the_built_in_text_are_ours():
    paragraphs = builtin.corpus()["valid"]
    words = dict.fromkeys(word for text in paragraphs for word in builtin.split_words(text).split())
    corpus, tokenizer = both("word", ["<eos>", "<unk>", *words], "builtin")
    for text in [*paragraphs, "One''two -- x--y ... \u00a7\u00a7 z\u2019s (( ]]", "<eos> a\n\nb"]:
        ids = tokenizer.encode(text).ids
        assert ids == corpus.encode(text), text
        assert tokenizer.decode(ids) == corpus.decode(ids)


def test_a_word_without_an_id_is_an_error_where_the_vocabulary_has_no_unk():
    _, tokenizer = both("word", ["<eos>", "a"])
    with pytest.raises(Exception, match="UNK"):
        tokenizer.encode("b")

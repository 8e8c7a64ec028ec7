"""Tokens of real and small texts: published counts, the rule, the kinds of files, which prepared copy serves."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fourierformer.data.text.corpus import TextData, check_available, load_corpus
from fourierformer.errors import SetupError
from tests.helpers.command_line import CONFIGS


def config(name: str, **overrides) -> TextData:
    return TextData(**yaml.safe_load((CONFIGS / "data" / f"{name}.yaml").read_text(encoding="utf-8")) | overrides)


def test_wikitext2_has_the_published_counts(real_data, tmp_path):
    corpus = load_corpus(config("wikitext2", root=str(real_data / "wikitext-2"), cache=str(tmp_path)))
    assert {split: len(tokens) for split, tokens in corpus.splits.items()} == {
        "train": 2_088_628,
        "valid": 217_646,
        "test": 245_569,
    }
    assert corpus.vocab_size == len(corpus.words) == 33_278
    assert corpus.notes == []
    assert corpus.splits["train"].dtype == np.uint16
    assert isinstance(corpus.splits["train"], np.memmap)
    # words by falling count after <eos>: <unk> is counted 54,625 times (data README), "the" more often
    assert corpus.words[0] == "<eos>"
    counts = np.bincount(corpus.splits["train"])
    assert counts[0] == 36_718
    assert counts[corpus.ids["<unk>"]] == 54_625
    assert (np.diff(counts[1:]) <= 0).all()
    for split in ("train", "valid", "test"):  # every token back, in order
        text = (real_data / f"wikitext-2/wiki.{split}.tokens").read_text(encoding="utf-8")
        assert corpus.decode(corpus.splits[split]) == "\n".join(" ".join(line.split()) for line in text.split("\n"))


@pytest.mark.full("a large vocabulary")
def test_wikitext103_has_the_full_vocabulary_and_says_that_its_training_text_is_not_whole(real_data, tmp_path):
    corpus = load_corpus(config("wikitext103", root=str(real_data / "wikitext-103"), cache=str(tmp_path)))
    assert corpus.vocab_size == 267_735
    assert len(corpus.splits["valid"]) == 217_646
    assert len(corpus.splits["test"]) == 245_569
    assert corpus.splits["test"].dtype == np.uint32
    assert any("your data is not the paper's data: train has 501,311 tokens" in note for note in corpus.notes)
    # published <unk> counts of valid and test: no other word was unknown
    assert int((corpus.splits["valid"] == corpus.ids["<unk>"]).sum()) == 1_657
    assert int((corpus.splits["test"] == corpus.ids["<unk>"]).sum()) == 2_492
    listed = dict(line.rsplit(" ", 1) for line in (real_data / "wikitext-103/dict.txt").read_text("utf-8").splitlines())
    rank = corpus.ids["<unk>"]  # 103,227,021 - 1,801,350 - 100,983,712 = 441,959
    assert int(listed[corpus.words[rank - 1]]) >= 441_959 > int(listed[corpus.words[rank + 1]])
    assert not any(word.startswith("madeupword") for word in corpus.words)


def test_a_limit_also_holds_for_a_listed_vocabulary(tmp_path):
    """The list of a text, and the text itself, give the same vocabulary."""
    text = "a a a a a a a a a b b b b b b b c c c c c d d d e e f\n"
    (tmp_path / "dict.txt").write_text("a 9\nb 7\nc 5\nd 3\ne 2\nf 1\n")
    for name in ("wiki.train.tokens", "wiki.train.head.tokens", "wiki.valid.tokens", "wiki.test.tokens"):
        (tmp_path / name).write_text(text)
    whole = config("text", root=str(tmp_path), cache=str(tmp_path / "cache"), vocabulary_size=5)
    counted = load_corpus(whole)
    assert counted.words == ["<eos>", "a", "b", "<unk>", "c"]  # 3 + 2 + 1 times <unk>
    (tmp_path / "wiki.train.tokens").unlink()
    listed = load_corpus(replace(whole, name="listed"))
    assert listed.words == counted.words
    assert np.array_equal(listed.splits["test"], counted.splits["test"])


def test_wikitext2_as_bytes(real_data, tmp_path):
    corpus = load_corpus(config("wikitext2_bytes", root=str(real_data / "wikitext-2"), cache=str(tmp_path)))
    assert corpus.vocab_size == 256
    assert corpus.notes == []
    assert corpus.splits["valid"].tobytes() == (real_data / "wikitext-2/wiki.valid.tokens").read_bytes()
    assert corpus.decode(corpus.encode("Gr\u00fc\u00dfe")) == "Gr\u00fc\u00dfe"


def test_one_file_is_cut_by_its_length(tmp_path):
    text = bytes(range(256)) * 4
    path = tmp_path / "enwik8"
    path.write_bytes(text)
    data = config("enwik8", root=str(path), cache=str(tmp_path / "cache"), byte_splits=[900, 100, 24], expect=None)
    corpus = load_corpus(data)
    assert b"".join(tokens.tobytes() for tokens in corpus.splits.values()) == text
    assert [len(tokens) for tokens in corpus.splits.values()] == [900, 100, 24]
    assert [len(t) for t in load_corpus(replace(data, byte_splits=None)).splits.values()] == [922, 51, 51]
    folder = replace(data, root=str(tmp_path), cache=str(tmp_path / "other"))  # the folder that holds it
    assert len(load_corpus(folder).splits["test"]) == 24
    with pytest.raises(SetupError, match=r"has 1,024 bytes, but data.byte_splits .* need 100,000,000"):
        load_corpus(replace(data, byte_splits=[90_000_000, 5_000_000, 5_000_000]))


@pytest.mark.parametrize("unit", ["word", "bpe"])
def test_one_text_file_is_cut_at_line_ends(unit, tmp_path):
    if unit == "bpe":
        pytest.importorskip("tokenizers", reason="tokenizers is not installed (the extra bpe)")
    lines = [f"line {number} übt größere Wörter\n" for number in range(100)]
    path = tmp_path / "novel.txt"
    path.write_text("".join(lines), encoding="utf-8")
    data = config("text", root=str(path), cache=str(tmp_path / "cache"), unit=unit, vocabulary_size=300)
    if unit == "word":  # every line has a number of its own
        data = replace(data, vocabulary_size=20)
    corpus = load_corpus(data)
    counts = [tokens.tolist().count(corpus.encode("line")[0]) for tokens in corpus.splits.values()]
    assert sum(counts) == 100  # no line is lost, none is cut
    assert all(abs(count - share) <= 1 for count, share in zip(counts, (90, 5, 5), strict=True))


@pytest.mark.parametrize("unit", ["word", "bpe"])
def test_a_byte_order_mark_is_no_part_of_the_first_word(unit, tmp_path):
    if unit == "bpe":
        pytest.importorskip("tokenizers", reason="tokenizers is not installed (the extra bpe)")
    splits = {}
    for encoding in ("utf-8", "utf-8-sig"):
        root = tmp_path / encoding
        root.mkdir()
        for split in ("train", "valid", "test"):
            (root / f"{split}.txt").write_text("the cat sat\nthe cat\n", encoding=encoding)
        size = {"word": None, "bpe": 300}[unit]
        data = config("text", root=str(root), cache=str(root / "cache"), unit=unit, vocabulary_size=size)
        splits[encoding] = {split: tokens.tolist() for split, tokens in load_corpus(data).splits.items()}
    assert splits["utf-8-sig"] == splits["utf-8"]


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_a_prompt_that_is_not_utf_8_is_one_line(unit, small):
    corpus = load_corpus(replace(small, unit=unit))
    with pytest.raises(SetupError, match="the text is not UTF-8, at character 4: convert it"):
        corpus.encode(os.fsdecode(b"caf\xe9"))


def test_the_rule_on_a_text_one_can_check_by_eye(small, capsys):
    corpus = load_corpus(small)
    # counts: the 3, = 2, sat 2, then once each in order of appearance
    assert corpus.words == ["<eos>", "the", "=", "sat", "Title", "cat", "on", "<unk>", "mat", ".", "dog"]
    assert corpus.splits["train"].tolist() == [2, 4, 2, 0, 0, 1, 5, 3, 6, 1, 7, 8, 9, 0, 1, 10, 3, 0]
    assert corpus.splits["test"].tolist() == [7, 7, 10, 0, 0]  # "a" is not in train
    assert corpus.notes == ["tokens outside the vocabulary, counted as <unk>: test 20.00%"]
    assert corpus.decode(corpus.encode("the dog sat\n\non mat\n")) == "the dog sat\n\non mat\n"
    assert capsys.readouterr().err == ""
    assert corpus.encode("the zebra") == [1, 7]
    assert capsys.readouterr().err == "note: not in the vocabulary, so <unk>: zebra\n"


def test_an_unknown_word_without_unk_is_an_error(small, lines):
    for split in lines:
        path = Path(small.root) / f"wiki.{split}.tokens"
        path.write_text(path.read_text().replace("<unk>", "dog"))
    message = "test text has 1 words that the training text lacks, the first is 'a'"
    with pytest.raises(SetupError, match=message) as caught:
        load_corpus(replace(small, vocabulary_size=8192))
    fewer = int(str(caught.value).rpartition("data.vocabulary_size=")[2])
    assert "<unk>" in load_corpus(replace(small, vocabulary_size=fewer)).words  # the way out is one
    shutil.rmtree(small.cache)
    with pytest.raises(SetupError, match=message):
        load_corpus(small)
    assert not list(Path(small.cache).glob("small-*"))


def test_other_file_names_give_the_same_tokens(small, tmp_path, lines):
    import datasets

    expected = load_corpus(small)
    for kind in ("txt", "parquet"):
        root = tmp_path / kind
        root.mkdir()
        for split, text in lines.items():
            if kind == "txt":
                (root / f"{split}.txt").write_text(text)
            else:  # as the hub stores them: a row per line, blank rows empty
                rows = [line + "\n" if line.strip() else "" for line in text.split("\n")[:-1]]
                name = "validation" if split == "valid" else split
                for number, row in enumerate(rows):  # every row in a shard of its own
                    path = root / f"{name}-{number:05}-of-{len(rows):05}.parquet"
                    datasets.Dataset.from_dict({"text": [row]}).to_parquet(path)
        corpus = load_corpus(replace(small, root=str(root)))
        assert corpus.words == expected.words
        assert all(np.array_equal(corpus.splits[split], expected.splits[split]) for split in lines)


def test_parquet_without_text_names_its_columns(small, tmp_path, lines):
    import datasets

    for split in lines:
        datasets.Dataset.from_dict({"content": ["a"]}).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(SetupError, match=r"no column 'text' \(it has: content\)"):
        load_corpus(replace(small, root=str(tmp_path)))


def test_the_second_load_prepares_nothing_and_hashes_no_text(small, monkeypatch):
    load_corpus(small)
    monkeypatch.setattr("fourierformer.data.text.corpus.prepare", None)
    monkeypatch.setattr("fourierformer.data.text.sources.file_sha256", None)
    assert len(load_corpus(small).splits["train"]) == 18


def test_a_touched_text_is_recognised_and_a_changed_one_is_another_folder(small, lines):
    first = load_corpus(small)
    path = Path(small.root) / "wiki.train.tokens"
    os.utime(path, (1, 1))
    assert load_corpus(small).folder == first.folder
    path.write_text(lines["train"].replace("mat", "cot"))  # same length
    os.utime(path, (1, 2))
    second = load_corpus(small)
    assert second.folder != first.folder
    assert "cot" in second.words
    assert load_corpus(replace(small, vocabulary_size=5)).vocab_size == 5


@pytest.mark.parametrize("change", [{"unit": "byte"}, {"expect": {"train": 17}}, {"vocabulary_size": 5}])
def test_what_changes_tokens_or_notes_has_a_copy_of_its_own(small, change, tmp_path):
    expected = load_corpus(replace(small, **change, cache=str(tmp_path / "other")))
    first = load_corpus(small)
    second = load_corpus(replace(small, **change))
    assert second.folder != first.folder
    assert second.folder.name == expected.folder.name
    assert (second.unit, second.vocab_size, second.notes) == (expected.unit, expected.vocab_size, expected.notes)
    assert second.splits["train"].tolist() == expected.splits["train"].tolist()


def test_of_copies_of_several_texts_none_serves_without_the_text(small, lines):
    first = load_corpus(small)
    (Path(small.root) / "wiki.train.tokens").write_text(lines["train"].replace("mat", "hat"))
    second = load_corpus(small)
    shutil.rmtree(small.root)
    names = ", ".join(sorted(corpus.folder.name for corpus in (first, second)))
    for call in (check_available, load_corpus):
        with pytest.raises(SetupError, match=rf"several prepared copies of 'small' \({names}\).*delete all but one"):
            call(small)
    shutil.rmtree(first.folder)
    assert load_corpus(small).folder == second.folder


def test_a_copied_cache_serves_without_the_text_but_only_for_its_own_root(small):
    load_corpus(small)
    shutil.rmtree(small.root)
    check_available(small)
    assert len(load_corpus(small).splits["train"]) == 18
    elsewhere = replace(small, root=small.root + "-typo")
    with pytest.raises(SetupError, match=r"there is no .*-typo.* made from another root .*root\)"):
        check_available(elsewhere)

"""Prepared text: published counts, and what happens when something is missing, damaged or full."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fourierformer.data import prepare as preparing
from fourierformer.data import prepared
from fourierformer.data.sources import local_source
from fourierformer.data.text import TextData, check_available, load_corpus
from fourierformer.errors import SetupError

REPOSITORY = Path(__file__).resolve().parents[2]
LINES = {
    "train": " = Title = \n \nthe cat sat on the <unk> mat .\nthe dog sat\n",
    "valid": "the cat\n",
    "test": "a <unk> dog\n\n",
}


def config(name: str, **overrides) -> TextData:
    return TextData(**yaml.safe_load((REPOSITORY / "configs/data" / f"{name}.yaml").read_text()) | overrides)


@pytest.fixture
def small(tmp_path) -> TextData:
    root = tmp_path / "root"
    root.mkdir()
    for split, text in LINES.items():
        (root / f"wiki.{split}.tokens").write_text(text, encoding="utf-8")
    return TextData(name="small", root=str(root), cache=str(tmp_path / "cache"))


def tree(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if not path.name.endswith(".lock"))


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


def test_the_rule_on_a_text_one_can_check_by_eye(small):
    corpus = load_corpus(small)
    # counts: the 3, = 2, sat 2, then once each in order of appearance
    assert corpus.words == ["<eos>", "the", "=", "sat", "Title", "cat", "on", "<unk>", "mat", ".", "dog"]
    assert corpus.splits["train"].tolist() == [2, 4, 2, 0, 0, 1, 5, 3, 6, 1, 7, 8, 9, 0, 1, 10, 3, 0]
    assert corpus.splits["test"].tolist() == [7, 7, 10, 0, 0]  # "a" is not in train
    assert corpus.notes == ["test: 1 of 5 tokens are not in the vocabulary and count as <unk>"]
    assert corpus.decode(corpus.encode("the dog sat\n\non mat\n")) == "the dog sat\n\non mat\n"
    assert corpus.encode("the zebra") == [1, 7]


def test_an_unknown_word_without_unk_is_an_error(small):
    for split in LINES:
        path = Path(small.root) / f"wiki.{split}.tokens"
        path.write_text(path.read_text().replace("<unk>", "dog"))
    with pytest.raises(SetupError, match="test text has 1 words that the training text lacks, the first is 'a'"):
        load_corpus(small)
    assert tree(small.cache) == []


def test_other_file_names_give_the_same_tokens(small, tmp_path):
    import datasets

    expected = load_corpus(small)
    for kind in ("txt", "parquet"):
        root = tmp_path / kind
        root.mkdir()
        for split, text in LINES.items():
            if kind == "txt":
                (root / f"{split}.txt").write_text(text)
            else:  # as the hub stores them: a row per line, blank rows empty
                rows = [line + "\n" if line.strip() else "" for line in text.split("\n")[:-1]]
                name = "validation" if split == "valid" else split
                datasets.Dataset.from_dict({"text": rows}).to_parquet(root / f"{name}-00000-of-00001.parquet")
        corpus = load_corpus(replace(small, root=str(root)))
        assert corpus.words == expected.words
        assert all(np.array_equal(corpus.splits[split], expected.splits[split]) for split in LINES)


def test_parquet_without_text_names_its_columns(small, tmp_path):
    import datasets

    for split in LINES:
        datasets.Dataset.from_dict({"content": ["a"]}).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(SetupError, match=r"no column 'text' \(it has: content\)"):
        load_corpus(replace(small, root=str(tmp_path)))


def test_the_second_load_prepares_nothing_and_hashes_no_text(small, monkeypatch):
    load_corpus(small)
    monkeypatch.setattr("fourierformer.data.text.prepare", None)
    monkeypatch.setattr("fourierformer.data.sources.file_digest", None)
    assert len(load_corpus(small).splits["train"]) == 18


def test_a_touched_text_is_recognised_and_a_changed_one_is_another_folder(small):
    first = load_corpus(small)
    path = Path(small.root) / "wiki.train.tokens"
    os.utime(path, (1, 1))
    assert load_corpus(small).folder == first.folder
    path.write_text(LINES["train"].replace("mat", "cot"))  # same length
    os.utime(path, (1, 2))
    second = load_corpus(small)
    assert second.folder != first.folder
    assert "cot" in second.words
    assert load_corpus(replace(small, vocabulary_size=5)).vocab_size == 5


def test_a_copied_cache_serves_without_the_text_but_only_for_its_own_root(small):
    load_corpus(small)
    shutil.rmtree(small.root)
    check_available(small)
    assert len(load_corpus(small).splits["train"]) == 18
    elsewhere = replace(small, root=small.root + "-typo")
    with pytest.raises(SetupError, match=r"there is no .*-typo.* as made from another root .*root\)"):
        check_available(elsewhere)


def break_manifest(folder):
    (folder / "manifest.json").write_text("{")


def break_count(folder):
    edit(folder, lambda manifest: manifest["counts"].update(train=17))


def break_format(folder):
    edit(folder, lambda manifest: manifest.update(format=99))


def break_digest(folder):
    edit(folder, lambda manifest: manifest["inputs"][0].__setitem__(1, "0" * 64))


def remove_manifest(folder):
    (folder / "manifest.json").unlink()


def remove_file(folder):
    (folder / "valid.bin").unlink()


def truncate(folder):
    os.truncate(folder / "train.bin", 20)


def flip_bit(folder):
    raw = bytearray((folder / "train.bin").read_bytes())
    raw[3] ^= 1
    (folder / "train.bin").write_bytes(raw)


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "harm",
    [break_manifest, break_count, break_format, break_digest, remove_manifest, remove_file, truncate, flip_bit],
    ids=lambda harm: harm.__name__,
)
@pytest.mark.parametrize("text_is_there", [True, False], ids=["with text", "without text"])
def test_damage_is_refused_with_the_folder_to_delete(small, harm, text_is_there):
    folder = load_corpus(small).folder
    harm(folder)
    if not text_is_there:
        shutil.rmtree(small.root)
    with pytest.raises(SetupError) as error:
        load_corpus(small)
    assert f"rm -r '{folder}'" in str(error.value)
    assert "\n" not in str(error.value)
    if harm is not flip_bit:  # the check before a run reads no content, it finds the rest
        with pytest.raises(SetupError, match="Delete it"):
            check_available(small)
    if text_is_there:  # the way out works
        shutil.rmtree(folder)
        assert len(load_corpus(small).splits["train"]) == 18


def test_a_manifest_under_another_name_is_refused(small):
    folder = load_corpus(small).folder
    folder.rename(folder.with_name("small-0123456789ab"))
    with pytest.raises(SetupError, match=r"small-0123456789ab has a manifest.json that belongs to another text"):
        load_corpus(small)


def test_missing_data_is_said_at_once_with_three_ways_out(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: time.sleep(30))  # a network that never answers
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    data = config("wikitext103", root=str(tmp_path / "nowhere"), cache=str(tmp_path / "cache"))
    for call in (check_available, load_corpus):
        started = time.monotonic()
        with pytest.raises(SetupError) as error:
            call(data)
        assert time.monotonic() - started < 2
        for part in ("(a)", "(b)", "(c)", "data.root=", "scripts/prepare_data.py wikitext103", "data=builtin_text"):
            assert part in str(error.value)
    assert not (tmp_path / "cache").exists() or tree(str(tmp_path / "cache")) == []


def test_an_incomplete_root_says_what_it_lacks(small):
    (Path(small.root) / "wiki.valid.tokens").unlink()
    with pytest.raises(SetupError, match=r"lacks wiki.valid.tokens \(it has wiki.train.tokens, wiki.test.tokens\)"):
        check_available(small)


def test_an_empty_split_and_a_text_in_another_encoding_are_named(small):
    path = Path(small.root) / "wiki.valid.tokens"
    path.write_text("")
    with pytest.raises(SetupError, match="the valid text is empty"):
        load_corpus(small)
    path.write_bytes("Grüße\n".encode("latin-1"))
    with pytest.raises(SetupError, match="the valid text is not UTF-8"):
        load_corpus(small)
    assert tree(small.cache) == []


def test_a_cache_that_cannot_be_written_names_the_way_out(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot use .*data.cache=/some/folder"):
        load_corpus(replace(small, cache=str(tmp_path / "file" / "cache")))


def test_a_full_disk_leaves_nothing_behind(small, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SetupError, match=r"disk under .* is full .* data.cache="):
        load_corpus(small)
    assert tree(small.cache) == []


def test_a_read_only_root_is_never_written_to(small):
    before = tree(small.root)
    for path in (Path(small.root), *Path(small.root).iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    load_corpus(small)
    Path(small.root).chmod(0o755)
    assert tree(small.root) == before


def test_leftovers_of_a_killed_process_are_removed(small):
    leftover = Path(small.cache) / ".small-abc.tmp"
    leftover.mkdir(parents=True)
    (leftover / "train.ids").write_bytes(b"1234")
    folder = load_corpus(small).folder
    assert tree(small.cache) == [folder.name]


def test_without_locks_the_first_rename_wins(small, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(prepared.fcntl, "flock", no_locks)
    folder = load_corpus(small).folder
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert preparing.prepare(small, local_source(small), lambda line: None) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert tree(small.cache) == [folder.name]


def test_two_processes_at_once_both_end_well(small):
    code = (
        "import sys, json; from fourierformer.data.text import TextData, load_corpus;"
        "print(load_corpus(TextData(**json.loads(sys.argv[1]))).folder)"
    )
    values = json.dumps({"name": small.name, "root": small.root, "cache": small.cache})
    both = [subprocess.Popen([sys.executable, "-c", code, values], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert outputs == {str(load_corpus(small).folder)}
    assert len(tree(small.cache)) == 1

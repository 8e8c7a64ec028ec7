"""Prepared copies when something is missing, damaged, full, locked or killed: one sentence with a way out."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fourierformer.data.text import prepare as preparing
from fourierformer.data.text import prepared
from fourierformer.data.text.corpus import TextData, check_available, load_corpus, quick_fingerprint
from fourierformer.data.text.sources import local_source
from fourierformer.errors import SetupError
from fourierformer.files import checksum, file_sha256
from tests.helpers.networks import silent_network

MISSING = object()


def tree(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if not path.name.endswith(".lock"))


def break_manifest(folder):
    (folder / "manifest.json").write_text("{")


def enlarge_manifest(folder):
    os.truncate(folder / "manifest.json", 2**35)  # a hole, which takes no place on the disk


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
    [
        break_manifest,
        enlarge_manifest,
        break_count,
        break_format,
        break_digest,
        remove_manifest,
        remove_file,
        truncate,
        flip_bit,
    ],
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


@pytest.mark.parametrize("block", [1, 3, prepared.BLOCK])
def test_ids_beyond_the_vocabulary_are_refused_though_every_sum_is_right(small, block, monkeypatch):
    """They would end the training in the embedding, on a GPU with the whole process."""
    monkeypatch.setattr(prepared, "BLOCK", block)
    folder = load_corpus(small).folder
    manifest, path = json.loads((folder / "manifest.json").read_text()), folder / "train.bin"
    tokens, words = np.fromfile(path, manifest["dtype"]), manifest["counts"]["vocabulary"]
    tokens[3] = words
    tokens.tofile(path)
    facts = {"size": path.stat().st_size, "sha256": file_sha256(path)}
    forge(folder, json.dumps(manifest), "outputs.train.bin", facts)
    with pytest.raises(SetupError, match=f"train.bin has the id {words} of a vocabulary of {words}"):
        load_corpus(small)


WRONG = [None, [], [1], {}, "text", 7, -1, math.nan, {"train": None}, {"a": {"b": []}}]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *((key, WRONG) for key in ("name", "settings", "inputs", "dtype", "counts", "outputs")),
        ("notes", [None, "text", 7, {}, [1], [None]]),
        ("fingerprint", [None, [], {}, 7]),
        ("dtype", ["object", "O", "float32", "uint64", "i4", "nothing", "uint8", ["uint16"]]),
        *((f"counts.{name}", [None, [], "7", -1, 0, 2**70, 1.5]) for name in ("train", "vocabulary")),
        ("counts.test", [19]),
        ("outputs.train.bin", [None, [], {}, {"size": "7", "sha256": 7}, {"size": 7}]),
    ],
)
@pytest.mark.parametrize("text_is_there", [True, False], ids=["with text", "without text"])
def test_a_manifest_of_somebody_else_is_one_line_and_then_prepared_anew(small, key, values, text_is_there):
    folder = load_corpus(small).folder
    original = (folder / "manifest.json").read_text()
    root = Path(small.root)
    if not text_is_there:
        root.rename(root.with_name("away"))
    for value in [*values, MISSING]:
        forge(folder, original, key, value)
        # with other settings it is not the copy that is looked for; loading meets it under its name
        for call in (load_corpus,) if key == "settings" else (load_corpus, check_available, quick_fingerprint):
            with pytest.raises(SetupError) as error:
                call(small)
            assert "\n" not in str(error.value) or "is missing" in str(error.value)
    if text_is_there:
        shutil.rmtree(folder)
        assert len(load_corpus(small).splits["train"]) == 18


@pytest.mark.parametrize("value", [None, [], 7, "text", {}, {"root": []}, {"root": {}}, {"root": None}])
def test_an_origin_of_another_form_is_no_origin(small, value):
    folder = load_corpus(small).folder
    forge(folder, (folder / "manifest.json").read_text(), "origin", value)
    shutil.rmtree(small.root)
    with pytest.raises(SetupError, match="Data 'small' is missing"):
        load_corpus(small)


def forge(folder: Path, original: str, key: str, value: object) -> None:
    """Set a dotted key of a manifest, or remove it, with the checksum of the result."""
    manifest = json.loads(original)
    *outer, last = key.split(".", 1)
    section = manifest[outer[0]] if outer else manifest
    if value is MISSING:
        del section[last]
    else:
        section[last] = value
    del manifest["checksum"]
    (folder / "manifest.json").write_text(json.dumps(manifest | {"checksum": checksum(manifest)}))


def test_a_manifest_under_another_name_is_refused(small):
    folder = load_corpus(small).folder
    folder.rename(folder.with_name("small-0123456789ab"))
    with pytest.raises(SetupError, match=r"small-0123456789ab has a manifest.json that belongs to another text"):
        load_corpus(small)


def test_missing_data_is_an_error_with_three_ways_out(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    data = TextData(
        name="wikitext103",
        root=str(tmp_path / "nowhere"),
        cache=str(tmp_path / "cache"),
        hub="Salesforce/wikitext",
        hub_config="wikitext-103-v1",
    )
    for call in (check_available, load_corpus):
        with silent_network(monkeypatch) as tried, pytest.raises(SetupError) as error:
            call(data)
        assert tried.is_set()
        for part in ("(a)", "(b)", "(c)", "data.root=", "scripts/prepare_data.py wikitext103", "data=builtin_text"):
            assert part in str(error.value)
    assert not (tmp_path / "cache").exists() or tree(str(tmp_path / "cache")) == []


@pytest.mark.parametrize(
    ("unit", "builtin"),
    [("word", "text: data=builtin_text"), ("bpe", "text: data=builtin_text"), ("byte", "text: data=builtin_bytes")],
)
def test_in_place_of_a_missing_text_a_text_is_offered(tmp_path, unit, builtin):
    size = {"vocabulary_size": 300} if unit == "bpe" else {}
    data = TextData(name="mine", unit=unit, root=str(tmp_path / "nowhere"), cache=str(tmp_path / "cache"), **size)
    with pytest.raises(SetupError) as error:
        check_available(data)
    assert str(error.value).endswith(f"(c) train without it, on the built-in {builtin}")


def test_an_incomplete_root_says_what_it_lacks(small):
    (Path(small.root) / "wiki.valid.tokens").unlink()
    with pytest.raises(SetupError, match=r"lacks wiki.valid.tokens \(it has wiki.train.tokens, wiki.test.tokens\)"):
        check_available(small)


def test_a_root_with_other_files_says_which(small):
    root = Path(small.root)
    for path in root.iterdir():
        path.unlink()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (root / name).write_text("a b c\n")
    with pytest.raises(SetupError, match=r"lacks wiki.train.tokens, .* \(it has a.txt, b.txt, c.txt, ...\)"):
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
    Path(small.cache).mkdir()
    leftover = Path(tempfile.mkdtemp(".tmp", ".small-", small.cache))  # as TemporaryDirectory names it
    (leftover / "train.ids").write_bytes(b"1234")
    folder = load_corpus(small).folder
    assert tree(small.cache) == [folder.name]


def test_what_another_process_prepares_under_a_longer_name_stays(small):
    Path(small.cache).mkdir()
    other = Path(tempfile.mkdtemp(".tmp", ".small-two-", small.cache))
    folder = load_corpus(small).folder
    assert tree(small.cache) == sorted([folder.name, other.name])


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
        "import sys, json; from fourierformer.data.text.corpus import TextData, load_corpus;"
        "print(load_corpus(TextData(**json.loads(sys.argv[1]))).folder)"
    )
    values = json.dumps({"name": small.name, "root": small.root, "cache": small.cache})
    both = [subprocess.Popen([sys.executable, "-c", code, values], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert outputs == {str(load_corpus(small).folder)}
    assert len(tree(small.cache)) == 1

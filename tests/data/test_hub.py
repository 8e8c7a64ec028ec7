"""The hub, without a connection to it: a cached copy is read, anything else is refused quickly."""

import shutil
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fourierformer.data import hub
from fourierformer.data.text.corpus import TextData, check_available, load_corpus
from fourierformer.errors import SetupError
from fourierformer.network import first_hop
from tests.helpers.networks import refused, silent_network


@pytest.fixture
def data(tmp_path, monkeypatch) -> TextData:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    return TextData(
        name="small",
        root=str(tmp_path / "none"),
        cache=str(tmp_path / "cache"),
        hub="Someone/some_text",
        hub_config="v1",
    )


@pytest.fixture
def cached(data, tmp_path) -> TextData:
    """What `datasets` leaves behind after load_dataset("Someone/some_text", "v1"), written by `datasets` itself."""
    from datasets.arrow_writer import ArrowWriter

    folder = tmp_path / "hf/datasets/Someone___some_text/v1/0.0.0/abcdef"
    folder.mkdir(parents=True)
    rows = {"train": ["", " = The = \n", "", " the cat <unk> \n"], "validation": ["the\n"], "test": ["cat\n", ""]}
    for split, texts in rows.items():
        with ArrowWriter(path=str(folder / f"some_text-{split}.arrow")) as writer:
            for text in texts:
                writer.write({"text": text})
            writer.finalize()
    return data


def test_a_cached_copy_is_used_without_a_network(cached, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", refused)
    check_available(cached)
    corpus = load_corpus(cached)
    assert corpus.decode(corpus.splits["train"]) == "\n= The =\n\nthe cat <unk>\n"
    assert corpus.decode(corpus.splits["valid"]) == "the\n"
    assert corpus.decode(corpus.splits["test"]) == "cat\n\n"
    assert [path.name for path in Path(cached.cache).glob("[!.]*")] == [corpus.folder.name]
    assert not list(Path(cached.cache).glob("*.tmp"))
    monkeypatch.setattr(hub, "download", None)
    assert load_corpus(cached).folder == corpus.folder  # the prepared copy serves from now on


def test_a_copy_that_another_process_has_not_finished_is_not_used(cached, tmp_path):
    """`datasets` writes into <hash>.incomplete, which a killed process leaves behind."""
    (finished,) = (tmp_path / "hf/datasets/Someone___some_text/v1/0.0.0").iterdir()
    shutil.copytree(finished, finished.with_name("fedcba.incomplete"))
    assert hub.cached_files(cached, "train") == [finished / "some_text-train.arrow"]
    shutil.rmtree(finished)
    assert hub.cached_files(cached, "train") == []


def test_a_split_has_its_own_files_only_whatever_the_set_is_called(data, tmp_path):
    folder = tmp_path / "hf/datasets/Someone___my-test-set/v1/0.0.0/abcdef"
    folder.mkdir(parents=True)
    files = {"train": ["train-00000-of-00002", "train-00001-of-00002"], "validation": ["validation"], "test": ["test"]}
    paths = {split: [folder / f"my-test-set-{name}.arrow" for name in names] for split, names in files.items()}
    for path in [path for split in paths.values() for path in split]:
        path.touch()
    named = replace(data, hub="Someone/my-test-set")
    assert {split: hub.cached_files(named, split) for split in paths} == paths


def test_downloading_writes_the_files_another_machine_reads(cached, tmp_path):
    hub.download(cached, tmp_path / "files", lambda line: None)
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "wiki.test.tokens",
        "wiki.train.tokens",
        "wiki.valid.tokens",
    ]
    assert (tmp_path / "files/wiki.train.tokens").read_text() == "\n = The = \n\n the cat <unk> \n"


def test_switched_off_is_reported_without_a_connection(data, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SetupError, match=r"the hub \(Someone/some_text\) is switched off"):
        check_available(data)


def test_a_network_without_replies_is_not_waited_for(data, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with silent_network(monkeypatch) as tried:
        with pytest.raises(SetupError, match="cannot be reached"):
            check_available(data)
        assert tried.is_set()


def test_a_reachable_hub_passes_the_check_and_builds_nothing(data, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    here, there = socket.socketpair()
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: here)
    check_available(data)
    there.close()
    assert not Path(data.cache).exists()


def without_proxies(monkeypatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_the_connection_goes_to_the_proxy(data, monkeypatch):
    without_proxies(monkeypatch)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    asked = []
    monkeypatch.setattr(
        socket, "create_connection", lambda address, **_: asked.append(address) or socket.socketpair()[0]
    )
    check_available(data)
    assert asked == [("proxy.example", 3128)]


@pytest.mark.parametrize(
    ("endpoint", "variables", "first"),
    [
        ("https://huggingface.co", {}, ("huggingface.co", 443)),
        ("https://huggingface.co", {"ALL_PROXY": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ("https://huggingface.co", {"HTTPS_PROXY": "proxy.example:3128"}, ("proxy.example", 3128)),
        ("https://huggingface.co", {"HTTPS_PROXY": "me:secret@10.0.0.1"}, ("10.0.0.1", 80)),
        (
            "https://mirror.example",
            {"HTTPS_PROXY": "http://proxy.example", "NO_PROXY": "mirror.example"},
            ("mirror.example", 443),
        ),
        ("http://mirror.example:8080", {"HTTPS_PROXY": "http://proxy.example:3128"}, ("mirror.example", 8080)),
    ],
)
def test_the_first_hop_is_the_proxy_of_that_scheme_unless_the_host_is_excepted(monkeypatch, endpoint, variables, first):
    without_proxies(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert first_hop(urlsplit(endpoint)) == first


@pytest.mark.parametrize(
    "proxy",
    [
        "http://me:hunter#2@proxy:8080",
        "http://me:12#3@proxy:8080",
        "http://proxy:abc",
        "http://proxy:99999",
        "http://[::1",
    ],
)
def test_a_proxy_that_is_no_address_is_one_line_without_its_password(monkeypatch, proxy):
    without_proxies(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(SetupError) as error:
        first_hop(urlsplit("https://huggingface.co"))
    way_out = "write HTTPS_PROXY=http://user:password@host:port, with %23 for # in a password"
    assert str(error.value) == f"the proxy in the environment is no address: {way_out}"


def test_a_failing_download_is_one_sentence_and_leaves_nothing(data, monkeypatch):
    import datasets

    def fail(*_, **__):
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(hub, "why_unreachable", lambda data: "")
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(SetupError, match=r"fetching Someone/some_text .* failed: ConnectionError: reset by peer"):
        load_corpus(data)
    assert not list(Path(data.cache).glob("*.tmp")) + list(Path(data.cache).glob(".*.tmp"))


def test_bytes_are_not_fetched(tmp_path):
    with pytest.raises(SetupError, match="no hub has data 'enwik8'"):
        hub.download(TextData(name="enwik8", unit="byte", root="data/enwik8"), tmp_path, print)

"""data.unit=bpe: byte pairs that the training text decides, and that give every text back."""

import math
import random

import pytest

import fourierformer
from fourierformer.data.text import bpe, sources
from fourierformer.data.text.corpus import Corpus, load_corpus
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError
from fourierformer.runs.parts import open_run
from fourierformer.runs.trained import export_run
from tests.helpers.command_line import MODEL, train_lm

pytest.importorskip("tokenizers")
ANY = "Füße  in\ttwo   lines\n\n\n 漢字 🙂\r\n\x00 of <unk> text, without an end"


def text_data(folder, valid: str = "a few words\n", size: int = 300) -> TextData:
    draw, words = random.Random(0), ["sinc", "kernel", "of", "the", "façade", "𝄞"]
    train = "".join(" ".join(draw.choices(words, k=9)) + "\n" for _ in range(200))
    for split, text in {"train": train, "valid": valid, "test": "the façade\n\nof\n"}.items():
        (folder / f"wiki.{split}.tokens").write_text(text, newline="")
    where = {"root": str(folder), "cache": str(folder / "cache"), "hub": None, "hub_config": None}
    return TextData(name="mine", source="files", **where, unit="bpe", vocabulary_size=size)


def test_the_first_merge_is_the_most_frequent_pair_of_the_training_text():
    tokenizer = bpe.trained(["xyz xyz xy\n"], 257)  # xy 3 times, yz twice
    assert tokenizer.id_to_token(256) == "xy"
    assert bpe.encoded(tokenizer, "xyxz") == [256, *bpe.encoded(tokenizer, "x"), *bpe.encoded(tokenizer, "z")]


def test_every_text_comes_back_and_has_as_many_bytes_as_its_tokens(tmp_path):
    corpus = load_corpus(text_data(tmp_path))
    ids, sizes = corpus.encode(ANY), bpe.token_bytes(corpus.tokenizer)
    assert corpus.decode(ids) == ANY
    assert sum(sizes[number] for number in ids) == len(ANY.encode())
    for split, tokens in corpus.splits.items():
        assert corpus.decode(tokens) == (tmp_path / f"wiki.{split}.tokens").read_text()


def test_other_splits_and_the_size_of_pieces_change_no_token(tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one = load_corpus(text_data(tmp_path / "one"))
    monkeypatch.setattr(sources, "PIECE", 7)
    other = load_corpus(text_data(tmp_path / "other", valid="quite another text: zzzz zzzz\n"))
    assert one.tokenizer.to_str() == other.tokenizer.to_str()
    assert one.splits["train"].tolist() == other.splits["train"].tolist()


@pytest.mark.parametrize("size", [None, 256])
def test_a_vocabulary_without_a_merge_is_refused(tmp_path, size):
    with pytest.raises(SetupError, match=r"needs a vocabulary of more than 256 bytes: data.vocabulary_size=8192"):
        text_data(tmp_path, size=size)


def test_foreign_facts_are_refused(tmp_path):
    facts = load_corpus(text_data(tmp_path)).facts()
    assert Corpus.of_facts("mine", facts).encode(ANY) == load_corpus(text_data(tmp_path)).encode(ANY)
    for changed, message in (({"tokenizer": "{}"}, "cannot be read"), ({"vocabulary": 299}, "another vocabulary")):
        with pytest.raises(SetupError, match=message):
            Corpus.of_facts("mine", facts | changed)


def test_a_run_measures_bits_per_byte_and_its_export_needs_no_data(tmp_path):
    text_data(tmp_path, valid="the kernel of the façade " * 40 + "\n")
    data = ("data=wikitext2_bpe", f"data.root={tmp_path}", f"data.cache={tmp_path}", "data.vocabulary_size=300")
    run = tmp_path / "run"
    assert train_lm(*MODEL, *data, f"run_dir={run}") == 0
    parts, _ = open_run(run, "cpu")
    measured = parts.objective.measure(parts.model, "valid", "sliding", lambda: None, lambda *progress: None)
    tokens = parts.corpus.splits["valid"]
    scored = len(parts.corpus.decode(tokens).encode()) - len(parts.corpus.decode(tokens[:1]).encode())
    assert measured["bpb"] == pytest.approx(measured["nll"] * (len(tokens) - 1) / math.log(2) / scored, rel=1e-9)
    assert measured["ppl"] == pytest.approx(math.exp(measured["nll"]), rel=1e-9)
    export_run(run, tmp_path / "exported")
    for file in tmp_path.glob("wiki.*"):
        file.unlink()
    exported, loaded = fourierformer.from_pretrained(tmp_path / "exported"), fourierformer.load_run(run)
    assert exported.generate("the façade", tokens=5, seed=1) == loaded.generate("the façade", tokens=5, seed=1)
    assert exported.generate("the façade", tokens=0) == "the façade"

"""Load text, or images, as memory-mapped tokens, with notes that a reader of the results needs.

data = TextData(name="wikitext2", root="data/wikitext-2", ...)     # = configs/data/wikitext2.yaml
check_available(data)                                             # under two seconds, builds nothing
corpus = load_corpus(data, say=print)                             # prepared copy, or local files, or the hub
OrderedStreams(corpus.splits["train"], batch_size=96, length=256).batch(step=0)
"""

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from fourierformer.checking import has_type, type_text
from fourierformer.data import hub
from fourierformer.data.location import Say, disk_errors
from fourierformer.data.text import bpe, builtin, pixels, prepared
from fourierformer.data.text.prepare import prepare
from fourierformer.data.text.prepared import find_prepared, open_prepared
from fourierformer.data.text.sources import SPLITS, Source, describe_missing, local_source
from fourierformer.data.text.spec import TextData
from fourierformer.data.text.words import EOS, UNK, line_words
from fourierformer.errors import LARGEST_COUNT, SetupError, check_range
from fourierformer.printing import echo

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Corpus", "TextData", "check_available", "load_corpus"]

# the keys of `Corpus.facts` with their types
FACTS: dict[str, object] = {
    "unit": Literal["word", "byte", "pixel", "bpe"],
    "vocabulary": int,
    "words": list[str] | None,
    "source": Literal["files", "builtin"] | None,
    "sequence": int | None,
    "tokenizer": str | None,
}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of the three splits, read-only and memory-mapped, and the manifest of their preparation."""

    name: str
    unit: str
    vocab_size: int
    splits: dict[str, np.ndarray]
    manifest: dict
    notes: list[str]
    folder: Path
    sequence: int | None = None  # tokens of each image, which is a sequence of its own; None = running text

    def facts(self) -> dict:
        """All but the tokens, as plain values: the needs of a model and its texts."""
        words = self.words if self.unit == "word" else None
        source = self.manifest["settings"].get("source")
        facts = {"unit": self.unit, "vocabulary": self.vocab_size, "words": words}
        pairs = {"tokenizer": self.tokenizer.to_str()} if self.unit == "bpe" else {}  # other units have no such key
        return facts | {"source": source, "sequence": self.sequence} | pairs

    @classmethod
    def of_facts(cls, name: str, facts: dict) -> Self:
        """The corpus of these `facts`, without any split. SetupError for facts that no corpus has."""
        facts = {"tokenizer": None} | facts
        for key, hint in FACTS.items():
            if key not in facts or not has_type(facts[key], hint):
                raise SetupError(f"data.json: {key}={str(facts.get(key))[:60]!r}: expected {type_text(hint)}")
        words, size = facts["words"], facts["vocabulary"]
        check_range("data.json: vocabulary", size, 1, LARGEST_COUNT + 1)
        if words is not None and len(words) != size:
            raise SetupError(f"data.json: it has {len(words):,} words, but a vocabulary of {size:,}")
        known = {"unit": facts["unit"], "vocab_size": facts["vocabulary"], "sequence": facts["sequence"]}
        settings = {"source": facts["source"]}
        corpus = cls(name=name, **known, splits={}, manifest={"settings": settings}, notes=[], folder=Path())
        vars(corpus)["words"] = facts["words"]  # the value of the cached_property, in place of the folder's
        if facts["unit"] == "bpe":
            vars(corpus)["tokenizer"] = tokenizer = bpe.of_json(facts["tokenizer"] or "")
            if tokenizer.get_vocab_size() != size:
                raise SetupError(
                    f"data.json: its tokenizer has another vocabulary than the {size:,} tokens of the model"
                )
        return corpus

    @cached_property
    def words(self) -> list[str]:
        """The words in id order (words only)."""
        return (self.folder / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The encoder of byte pairs (bpe only)."""
        return bpe.of_json((self.folder / "tokenizer.json").read_text(encoding="utf-8"))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """Ids of a text; a line end becomes `<eos>`, a word that the vocabulary lacks `<unk>`."""
        self._refuse_pixels()
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:  # Python's stand-in for bytes of a command line that are no UTF-8
            raise SetupError(f"the text is not UTF-8, at character {error.start + 1}: convert it") from None
        if self.unit == "byte":
            return list(raw)
        if self.unit == "bpe":
            return bpe.encoded(self.tokenizer, text)
        if self.manifest["settings"]["source"] == "builtin":
            text = builtin.split_words(text)
        words = line_words(text)
        unknown = [word for word in words if word not in self.ids]
        if unknown and UNK not in self.ids:
            raise SetupError(f"the vocabulary of '{self.name}' has neither {unknown[0]!r} nor <unk>: use other words")
        if unknown:
            echo(f"note: not in the vocabulary, so <unk>: {' '.join(dict.fromkeys(unknown))}", file=sys.stderr)
        return [self.ids[word if word in self.ids else UNK] for word in words]

    def decode(self, ids) -> str:
        """Text of ids, a list or an array; words are joined by one space, `<eos>` is a line end."""
        self._refuse_pixels()
        if self.unit == "byte":
            return bytes(int(number) for number in ids).decode("utf-8", "replace")
        if self.unit == "bpe":
            return self.tokenizer.decode([int(number) for number in ids])
        lines: list[list[str]] = [[]]
        for number in ids:
            if self.words[int(number)] == EOS:
                lines.append([])
            else:
                lines[-1].append(self.words[int(number)])
        return "\n".join(" ".join(line) for line in lines)

    def _refuse_pixels(self) -> None:
        if self.unit == "pixel":
            raise SetupError(f"'{self.name}' holds images: their tokens are no text. Choose a run on text")


def check_available(data: TextData) -> None:
    """SetupError, with three ways out, unless the data is available; in less than two seconds, also without network."""
    if data.unit == "bpe":
        bpe.require_tokenizers()
    with disk_errors(data):
        source = _source(data)
        folder = find_prepared(data, source, hash_text=False)
        if folder:
            open_prepared(data, folder, thorough=False)
        elif source is None and (reason := hub.why_unreachable(data)):
            raise _missing(data, reason)


def quick_fingerprint(data: TextData) -> str | None:
    """The fingerprint of the present text; None if only the hub has it. Hashes text only after a change of file
    times."""
    with disk_errors(data):
        source = _source(data)
        folder = find_prepared(data, source, hash_text=False)
        if folder:
            return open_prepared(data, folder, thorough=False)["fingerprint"]
        return prepared.text_fingerprint(data, source) if source else None


def load_corpus(data: TextData, say: Say = lambda line: None) -> Corpus:
    """Load the prepared copy, or prepare one: from the local files, else from the hub."""
    with disk_errors(data):
        source = _source(data)
        folder = find_prepared(data, source)
        if folder is None:
            with prepared.cache_lock(data, say):
                folder = find_prepared(data, source) or _prepare(data, source, say)
        manifest = open_prepared(data, folder)
    return Corpus(
        name=data.name,
        unit=data.unit,
        vocab_size=manifest["counts"]["vocabulary"],
        splits={split: np.memmap(folder / f"{split}.bin", manifest["dtype"], "r") for split in SPLITS},
        manifest=manifest,
        notes=manifest["notes"],
        folder=folder,
        sequence=manifest["counts"].get("sequence"),
    )


def _source(data: TextData) -> Source | None:
    if data.unit == "pixel":
        return pixels.local_source(data)
    return builtin.source(data.unit) if data.source == "builtin" else local_source(data)


def _prepare(data: TextData, source: Source | None, say: Say) -> Path:
    if source is not None:
        return prepare(data, source, say)
    if reason := hub.why_unreachable(data):
        raise _missing(data, reason)
    if data.unit == "pixel":
        return prepare(data, pixels.hub_source(data, say), say)
    with hub.downloaded(data, say) as files:
        fetched = local_source(files)
        assert fetched is not None  # every split is in that folder
        return prepare(data, fetched, say)


def _missing(data: TextData, hub_reason: str) -> SetupError:
    name = data.name
    if data.unit == "pixel":
        files = "train*.parquet and test*.parquet (or images in any form that data=imagenet takes)"
    elif data.byte_splits is not None:
        files = f"the file '{name}'"
    else:
        files = "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or train.txt, valid.txt, test.txt)"
    elsewhere = f"copy a prepared cache from another machine: {data.cache}/{name}-*"
    if data.hub and data.unit == "word":
        download = f"python scripts/prepare_data.py {name} --download-to {data.root}"
        elsewhere = f"on a machine with internet: {download}, then copy that folder here"
    place = "/your/folder" if data.hub or data.unit == "pixel" else "/your/folder or /your/text.txt"
    options = {"byte": "text: data=builtin_bytes", "pixel": "digits: experiment=builtin_pixels"}
    builtin = f"the built-in {options.get(data.unit, 'text: data=builtin_text')}"
    return SetupError(
        f"Data '{name}' is missing: {describe_missing(data)}; {prepared.other_roots(data)}; {hub_reason}. Fix one:\n"
        f"  (a) put {files} into {data.root}, or point there: data.root={place} (a script's --data-root)\n"
        f"  (b) {elsewhere}\n"
        f"  (c) train without it, on {builtin}"
    )

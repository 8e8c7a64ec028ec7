"""Tokenise text into a folder of flat id files, which is written under another name and renamed when complete."""

import contextlib
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fourierformer.data.location import Say
from fourierformer.data.text import bpe
from fourierformer.data.text.prepared import FORMAT, fingerprint, origin
from fourierformer.data.text.sources import SPLITS, Source
from fourierformer.data.text.spec import TextData
from fourierformer.data.text.words import EOS, UNK, Growing, fixed_table, listed_words, rank_words, whole_lines
from fourierformer.errors import SetupError
from fourierformer.files import checksum, file_sha256, replacing

BLOCK = 1 << 22  # ids relabelled at a time


def prepare(data: TextData, source: Source, say: Say) -> Path:
    """Write the prepared folder and return it. Of several simultaneous processes, the first to rename wins."""
    cache = data.cache_path
    with tempfile.TemporaryDirectory(".tmp", f".{data.name}-", cache, ignore_cleanup_errors=True) as temporary:
        aside = Path(temporary)
        say(f"preparing '{data.name}' in {cache}")
        started = time.perf_counter()
        manifest = _encode(data, source, aside, say)
        manifest["seconds"] = round(time.perf_counter() - started, 3)
        manifest["checksum"] = checksum(manifest)
        with replacing(aside / "manifest.json") as file:
            file.write(json.dumps(manifest, indent=1).encode())
        aside.chmod(0o755)  # mkdtemp makes it private
        folder = cache / f"{data.name}-{manifest['fingerprint']}"
        with contextlib.suppress(OSError):  # another process was first: its folder is used, and checked on opening
            aside.rename(folder)
        if not folder.is_dir():
            raise SetupError(f"cannot rename {aside} to {folder}: choose another folder with data.cache=/some/folder")
        return folder


def _encode(data: TextData, source: Source, folder: Path, say: Say) -> dict:
    encode = {"word": _encode_words, "bpe": _encode_pairs}.get(data.unit, _encode_bytes)
    facts = encode(data, source, folder, say)
    _refuse_empty(data, facts["counts"])
    digests = [[entry.name, entry.digest()] for entry in source.inputs]
    return {
        "format": FORMAT,
        "name": data.name,
        "fingerprint": fingerprint(data.settings, digests),
        "settings": data.settings,
        "origin": origin(data),
        "inputs": digests,
        "stamps": [[entry.name, entry.size, entry.mtime_ns] for entry in source.inputs],
        **facts,
        "outputs": {
            path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(folder.iterdir())
        },
        "notes": _differences(data, facts["counts"]) + source.notes + facts["notes"],
        "versions": {"python": platform.python_version(), "numpy": version("numpy")},
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _refuse_empty(data: TextData, counts: dict[str, int]) -> None:
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        raise SetupError(f"data '{data.name}': the {' and '.join(empty)} text is empty")


def _differences(data: TextData, counts: dict[str, int]) -> list[str]:
    """A note that results are not comparable with published ones, if the counts differ from the published ones."""
    tokens = {"word": "tokens", "bpe": "tokens", "byte": "bytes", "pixel": "pixel values"}[data.unit]
    words = {"vocabulary": "the vocabulary has {} entries", "lines": "train has {} lines"}
    words |= {"sequence": "an image has {} values"}
    wrong = [
        f"{words.get(key, key + ' has {} ' + tokens).format(f'{counts.get(key, 0):,}')}, the paper's {value:,}"
        for key, value in (data.expect or {}).items()
        if counts.get(key) != value
    ]
    return [f"your data is not the paper's data: {'; '.join(wrong)}"] if wrong else []


def _encode_bytes(data: TextData, source: Source, folder: Path, say: Say) -> dict:
    """Write the pieces unchanged, as ids of one byte; pieces of pixels are whole images, all of one size."""
    counts = {"vocabulary": source.levels}
    meter = _Meter(source.total, say)
    for split in SPLITS:
        with replacing(folder / f"{split}.bin") as file:
            for piece in source.pieces(split):
                file.write(piece)
                meter.add(split, len(piece), len(piece))
            counts[split] = file.tell()
    if data.unit == "pixel":
        counts["sequence"] = len(piece)
    return {"dtype": "uint8", "counts": counts, "notes": []}


def _encode_pairs(data: TextData, source: Source, folder: Path, say: Say) -> dict:
    assert data.vocabulary_size is not None  # checked by TextData
    tokenizer = bpe.trained(_texts(source, "train"), data.vocabulary_size)
    size = tokenizer.get_vocab_size()
    counts = {"vocabulary": size}
    dtype = np.dtype("uint16" if size < 1 << 16 else "uint32")
    meter = _Meter(source.total, say)
    for split in SPLITS:
        with replacing(folder / f"{split}.bin") as file:
            for text in _texts(source, split):
                ids = np.array(bpe.encoded(tokenizer, text), dtype)
                file.write(ids.data)
                meter.add(split, len(text.encode()), len(ids))
            counts[split] = file.tell() // dtype.itemsize
    with replacing(folder / "tokenizer.json") as file:
        file.write(tokenizer.to_str().encode())
    notes = [f"byte pairs by tokenizers {version('tokenizers')}"]
    return {"dtype": dtype.name, "counts": counts, "notes": notes}


def _encode_words(data: TextData, source: Source, folder: Path, say: Say) -> dict:
    listed = listed_words(source.vocabulary, data.expect, data.vocabulary_size) if source.vocabulary else None
    growing = Growing({word: number for number, word in enumerate(listed or [EOS])})
    tallies = _first_pass(source, folder, growing, say)
    _refuse_empty(data, {split: int(tally.sum()) for split, tally in tallies.items()})
    train = tallies["train"]
    vocabulary = fixed_table(listed, growing) if listed else rank_words(growing, train, data.vocabulary_size)
    dtype = "uint16" if len(vocabulary.words) < 1 << 16 else "uint32"
    notes = _unknown_notes(data, source, list(growing), vocabulary.words, tallies)
    for split in SPLITS:
        _relabel(folder, split, vocabulary.table, dtype)
    with replacing(folder / "vocabulary.txt") as file:
        file.write("".join(word + "\n" for word in vocabulary.words).encode())
    counts = {split: int(tally.sum()) for split, tally in tallies.items()}
    counts |= {"vocabulary": len(vocabulary.words), "lines": int(train[0])}  # one <eos> per line
    return {"dtype": dtype, "counts": counts, "notes": notes}


def _first_pass(source: Source, folder: Path, growing: Growing, say: Say) -> dict[str, np.ndarray]:
    """Write provisional ids to `<split>.ids`. Returns the count of each provisional id, per split."""
    tallies = {}
    meter = _Meter(source.total, say)
    for split in SPLITS:
        tally = np.zeros(len(growing), np.int64)
        with open(folder / f"{split}.ids", "wb") as file:
            for text in _texts(source, split):
                ids = growing.encode(text)
                file.write(ids.data)
                seen = np.bincount(ids, minlength=len(growing))
                seen[: len(tally)] += tally
                tally = seen
                meter.add(split, len(text), len(ids))
        tallies[split] = tally
    return tallies


def _unknown_notes(
    data: TextData, source: Source, names: list[str], words: list[str], tallies: dict[str, np.ndarray]
) -> list[str]:
    """A note on the share of tokens that became `<unk>`. SetupError for unknown words without an `<unk>`."""
    ids = set(words)
    unknown = np.array([name not in ids for name in names])
    shares = []
    for split, tally in tallies.items():
        lacking = unknown[: len(tally)]
        count = int(tally[lacking].sum())
        if count and UNK not in ids:
            example = names[int(np.flatnonzero(lacking & (tally > 0))[0])]
            # with half of its words the other half is <unk>, in the training text too
            fewer = f"keep fewer of its {len(words):,} words: data.vocabulary_size={max(3, len(words) // 2)}"
            where, way_out = "the training text", fewer
            if source.vocabulary:
                where, way_out = source.vocabulary.name, "is it the vocabulary of another text, data=wikitext103, say?"
            lacking_words = (
                f"{count:,} words that {where} lacks, the first is {example!r}, and there is no <unk> for them"
            )
            raise SetupError(f"data '{data.name}': the {split} text has {lacking_words}: {way_out}")
        if count:
            shares.append(f"{split} {count / tally.sum():.2%}")
    return [f"tokens outside the vocabulary, counted as <unk>: {', '.join(shares)}"] if shares else []


def _texts(source: Source, split: str) -> Iterator[str]:
    try:
        yield from whole_lines(source.pieces(split))
    except UnicodeDecodeError as error:
        raise SetupError(f"the {split} text is not UTF-8 ({error.reason}): convert it, or read it as bytes") from None


def _relabel(folder: Path, split: str, table: np.ndarray, dtype: str) -> None:
    final, provisional = table.astype(dtype), folder / f"{split}.ids"
    with open(provisional, "rb") as ids, replacing(folder / f"{split}.bin") as file:
        while len(block := np.frombuffer(ids.read(4 * BLOCK), np.uint32)):
            file.write(final[block].data)
    provisional.unlink()


class _Meter:
    """Print a line of progress for every tenth of the data."""

    def __init__(self, total: int, say: Say):
        self.total, self.say = total, say
        self.done, self.tokens, self.tenth, self.started = 0, 0, 0, time.perf_counter()

    def add(self, split: str, done: int, tokens: int) -> None:
        self.done += done
        self.tokens += tokens
        if self.total and 10 * self.done // self.total > self.tenth:
            self.tenth = 10 * self.done // self.total
            rate = self.tokens / max(time.perf_counter() - self.started, 1e-9)
            self.say(f"{split}: {min(self.done / self.total, 1):.0%} of the data, {rate / 1e6:.1f} M tokens/s")

"""The built-in corpus: English text from the Python installed on this machine, so that a first run needs no download.

Paragraphs from docstrings and comments of the standard library and numpy, and Python's help topics: about half a
million words of technical English. Modules that some Linux distributions lack (test, tkinter, idlelib) are left out
everywhere, so that equal versions of Python give equal corpora. A note states the versions; perplexities are comparable
within one.
"""

import hashlib
import platform
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy

from fourierformer.data.text.sources import SPLITS, Input, Source

SKIP = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "distutils", "ensurepip", "pydoc_data"}
SKIP |= {"site-packages", "dist-packages"}
GENERATED = re.compile(r"_sysconfigdata|__config__")  # differs from build to build
HELD_OUT_WORDS = 15_000  # per split: enough for a stable perplexity, few enough to score every position
LARGEST_SHARE = 0.1  # of one document in a held-out split, so that a split has the words of many modules

# Docstrings: a triple-quoted string at the top of a file or right after a line that ends in ':'. Takes a second;
# parsing every file takes ten times that and finds the same prose.
DOCSTRING = re.compile(
    r"(?:\A(?:[ \t]*#[^\n]*\n|[ \t]*\n)*|:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*\n)*)"
    r"[ \t]*[rRuU]{0,2}(\"\"\"|''')(.*?)\1",
    re.DOTALL,
)
COMMENT = re.compile(r"^[ \t]*# .*\n(?:[ \t]*#.*\n)*", re.MULTILINE)
UNDERLINED = re.compile(r"^.*\n[ \t]*[-=~^]{3,}[ \t]*$", re.MULTILINE)  # headings: no sentences
PROSE_WORD = re.compile(r"[\"'(]*[A-Za-z][a-z]*(?:[-'][a-z]+)*[.,;:)\"'?!]*")
COMMON = re.compile(r"(?i)the|an?|of|to|in|is|are|for|and|or|that|this|it|be|with|as|by|if|on|from|not|which")
TOKEN = re.compile(r"\w+(?:['-]\w+)*|[()\[\]{}]|([^\w\s])\1*")


def source(unit: str) -> Source:
    """The corpus as a Source: inputs for the fingerprint, text per split on demand."""
    files = _python_files()
    size = sum(size for _, _, size in files)
    listing = "\n".join(f"{name} {size}" for name, _, size in files)
    versions = f"Python {platform.python_version()} and numpy {version('numpy')}"
    if not _topics():
        versions += ", without help topics"
    stamp = Input(versions, size, 0, lambda: hashlib.sha256(listing.encode()).hexdigest())

    def pieces(split: str) -> Iterator[bytes]:
        for paragraph in corpus()[split]:
            yield ((split_words(paragraph) if unit == "word" else paragraph) + "\n").encode()

    notes = [f"built-in text, documentation of {versions}: compare only runs with the same versions"]
    return Source([stamp], pieces, notes=notes)


def split_words(text: str) -> str:
    """Lower-case words, spaces around punctuation, repeated signs once, line ends: See foo()... -> see foo ( ) ."""
    lines = text.lower().replace("\u2019", "'").split("\n")
    return "\n".join(" ".join(match[1] or match[0] for match in TOKEN.finditer(line)) for line in lines)


@cache
def corpus() -> dict[str, list[str]]:
    """Paragraphs per split, without duplicates. Whole documents are held out, in the order of a hash of their names."""
    seen: set[str] = set()
    documents = []
    for name, paragraphs in _documents():
        fresh = {paragraph.lower(): paragraph for paragraph in paragraphs if paragraph.lower() not in seen}
        seen |= fresh.keys()
        documents.append((name, list(fresh.values())))
    documents.sort(key=lambda document: hashlib.sha256(document[0].encode()).digest())
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    filled = dict.fromkeys(SPLITS, 0)
    for _, paragraphs in documents:
        words = sum(len(paragraph.split()) for paragraph in paragraphs)
        small = words <= LARGEST_SHARE * HELD_OUT_WORDS
        split = next((s for s in ("valid", "test") if small and filled[s] + words <= HELD_OUT_WORDS), "train")
        splits[split] += paragraphs
        filled[split] += words
    return splits


def paragraphs_of(text: str) -> Iterator[str]:
    """The paragraphs of prose in a text, each as one line, without code, doctests, tables and signatures."""
    for block in re.split(r"\n[ \t]*\n", UNDERLINED.sub("\n", text)):
        if ">>>" in block:
            continue
        words = block.split()
        if len(words) >= 6 and _is_prose(words):
            yield " ".join(words)


def _is_prose(words: list[str]) -> bool:
    plain = sum(PROSE_WORD.fullmatch(word) is not None for word in words)
    common = sum(COMMON.fullmatch(word) is not None for word in words)
    return plain >= 0.75 * len(words) and common >= max(1, len(words) // 12)


def _documents() -> Iterator[tuple[str, list[str]]]:
    for name, path, _ in _python_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        blocks = [match[2] for match in DOCSTRING.finditer(text)]
        blocks += [re.sub(r"(?m)^[ \t]*#+ ?", "", match[0]) for match in COMMENT.finditer(text)]
        yield name, [paragraph for block in blocks for paragraph in paragraphs_of(block)]
    for name, text in sorted(_topics().items()):
        yield f"topic {name}", list(paragraphs_of(text))


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out; the rest is enough
        return {}
    return topics


@cache
def _python_files() -> list[tuple[str, Path, int]]:
    """(name, path, size) of every module used, in a fixed order."""
    files = []
    for package, folder in (("python", Path(sysconfig.get_path("stdlib"))), ("numpy", Path(numpy.__file__).parent)):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).parts
            if SKIP.isdisjoint(parts) and not GENERATED.match(path.name):
                files.append((f"{package} {'/'.join(parts)}", path, path.stat().st_size))
    return sorted(files)

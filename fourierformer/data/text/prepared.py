"""Find, check and lock prepared text: `<cache>/<name>-<fingerprint>/` with the ids of each split, words and a manifest.

The fingerprint covers the content of the text and the settings that change its tokens, so another text or another
setting has another folder, and no stale copy is used. To find a folder, sizes and times of the text files are compared
with the manifest; the text is hashed only if they differ. Opening it checks everything (manifest, sizes, sha256 of each
file); an error names the folder to delete.
"""

import contextlib
import fcntl
import glob
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from fourierformer.checking import has_type, type_text
from fourierformer.data.location import Say
from fourierformer.data.text.sources import SPLITS, Source
from fourierformer.data.text.spec import TextData
from fourierformer.errors import LARGEST_COUNT, SetupError
from fourierformer.files import checksum, file_sha256, open_own, require_small

FORMAT = 1
BLOCK = 2**24  # tokens that are read at a time
WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4}  # bytes of a token by dtype
# the keys of a manifest that are read, with their types
FORM: dict[str, object] = {
    "name": str,
    "fingerprint": str,
    "settings": dict,
    "inputs": list,
    "dtype": Literal["uint8", "uint16", "uint32"],
    "counts": dict[str, int],
    "outputs": dict,
    "notes": list[str],
}


def find_prepared(data: TextData, source: Source | None, hash_text: bool = True) -> Path | None:
    """The folder with this text prepared under these settings, or None. Hashes the text only if file times changed."""
    manifests = {folder: _peek(folder) for folder in _folders(data)}
    if source is None:
        return _find_without_text(data, manifests)
    stamps = [[entry.name, entry.size, entry.mtime_ns] for entry in source.inputs]
    for folder, manifest in manifests.items():
        if manifest.get("settings") == data.settings and manifest.get("stamps") == stamps:
            return folder
    _refuse_unreadable(manifests)
    if not manifests or not hash_text:
        return None
    folder = data.cache_path / f"{data.name}-{text_fingerprint(data, source)}"
    return folder if folder.is_dir() else None


def _folders(data: TextData) -> list[Path]:
    return sorted(data.cache_path.glob(f"{glob.escape(data.name)}-{'[0-9a-f]' * 12}"))


def _refuse_unreadable(manifests: dict[Path, dict]) -> None:
    """SetupError for a folder without a readable manifest, which may be the needed one."""
    for folder, manifest in manifests.items():
        if not manifest:
            raise refuse(folder, "has no readable manifest.json")


def _find_without_text(data: TextData, manifests: dict[Path, dict]) -> Path | None:
    """The prepared folder to use if the text itself is missing: one made from the same root and hub names."""
    _refuse_unreadable(manifests)
    wanted = (data.settings, origin(data))
    fitting = [folder for folder, m in manifests.items() if (m.get("settings"), m.get("origin")) == wanted]
    if len(fitting) > 1:
        copies = f"several prepared copies of '{data.name}' ({', '.join(folder.name for folder in fitting)})"
        reason = f"{data.root} has no text to choose between them: delete all but one"
        raise SetupError(f"{data.cache_path} holds {copies}, and {reason}")
    return fitting[0] if fitting else None


def other_roots(data: TextData) -> str:
    """Part of the message about missing text: the roots of existing prepared copies."""
    origins = (_peek(folder).get("origin") for folder in _folders(data))
    roots = {str(origin["root"]) for origin in origins if isinstance(origin, dict) and origin.get("root") is not None}
    if not roots:
        return f"nothing is prepared in {data.cache}"
    return f"{data.cache} has only copies made from another root or with other settings ({', '.join(sorted(roots))})"


def _peek(folder: Path) -> dict:
    try:
        require_small(folder / "manifest.json")
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def origin(data: TextData) -> dict:
    return {"root": data.root, "hub": data.hub, "hub_config": data.hub_config}


def fingerprint(settings: dict, digests: list) -> str:
    return checksum([FORMAT, settings, digests])[:12]


def text_fingerprint(data: TextData, source: Source) -> str:
    """The fingerprint of a text under these settings. Hashes all of it."""
    return fingerprint(data.settings, [[entry.name, entry.digest()] for entry in source.inputs])


def refuse(folder: Path, reason: str) -> SetupError:
    return SetupError(f"The prepared data in {folder} {reason}. Delete it and run again: rm -r '{folder}'")


def open_prepared(data: TextData, folder: Path, thorough: bool = True) -> dict:
    """The manifest. SetupError unless it belongs to this folder, and the files have its sizes and sha256."""
    manifest = _peek(folder)
    if not manifest:
        raise refuse(folder, "has no readable manifest.json")
    if manifest.get("format") != FORMAT:
        raise refuse(folder, f"has format {manifest.get('format')}, this version reads {FORMAT}")
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    if manifest.get("checksum") != checksum(body):
        raise refuse(folder, "has a manifest.json that was changed after it was written")
    if reason := _misshapen(data, manifest):
        raise refuse(folder, f"has a manifest.json that no preparation wrote ({reason})")
    expected = f"{manifest['name']}-{fingerprint(manifest['settings'], manifest['inputs'])}"
    if expected != folder.name or manifest["settings"] != data.settings:
        raise refuse(folder, f"has a manifest.json that belongs to another text or other settings ({expected})")
    for name, facts in manifest["outputs"].items():
        if not (folder / name).is_file():
            raise refuse(folder, f"lacks {name}")
        if (size := (folder / name).stat().st_size) != facts["size"]:
            raise refuse(folder, f"is damaged: {name} has {size:,} bytes instead of {facts['size']:,}")
        if thorough and file_sha256(folder / name) != facts["sha256"]:
            raise refuse(folder, f"is damaged: the content of {name} does not match its sha256")
    words = manifest["counts"]["vocabulary"]
    for split in SPLITS if thorough else ():  # anybody can compute a right sha256
        tokens = np.memmap(folder / f"{split}.bin", manifest["dtype"], "r")
        if (highest := max(int(tokens[i : i + BLOCK].max()) for i in range(0, len(tokens), BLOCK))) >= words:
            raise refuse(folder, f"is damaged: {split}.bin has the id {highest:,} of a vocabulary of {words:,}")
    return manifest


def _misshapen(data: TextData, manifest: dict) -> str | None:
    """The first value of a manifest with another type or size than `prepare` writes; None if there is none. Anybody can
    compute a right checksum."""
    for key, hint in FORM.items():
        if not has_type(manifest.get(key), hint):
            return f"{key}={str(manifest.get(key))[:60]!r}: expected {type_text(hint)}"
    counts, outputs, width = manifest["counts"], manifest["outputs"], WIDTHS[manifest["dtype"]]
    for name, facts in outputs.items():
        if not (isinstance(facts, dict) and has_type(facts.get("size"), int) and has_type(facts.get("sha256"), str)):
            return f"outputs has no size and sha256 of {name}"
    needed = ["vocabulary", *SPLITS, *(["sequence"] if data.unit == "pixel" else [])]
    for name in needed:
        if not 1 <= counts.get(name, 0) < (LARGEST_COUNT if name == "vocabulary" else 2**63):
            return f"counts of {name}: {counts.get(name)}"
    for split in SPLITS:
        if outputs.get(f"{split}.bin", {}).get("size") != width * counts[split]:
            return f"{split}.bin is not of {counts[split]} numbers of {width} bytes"
    kept = {"word": "vocabulary.txt", "bpe": "tokenizer.json"}.get(data.unit)
    return None if kept is None or kept in outputs else f"outputs has no {kept}"


@contextlib.contextmanager
def cache_lock(data: TextData, say: Say) -> Iterator[None]:
    """A lock on preparing a data set: other processes wait and use the result. Creates the cache folder first."""
    data.cache_path.mkdir(parents=True, exist_ok=True)
    with open(data.cache_path / f".{data.name}.lock", "a", opener=open_own) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing '{data.name}': waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: both processes prepare, and the first to rename its result wins
            yield
            return
        # with the lock held, these are of a killed process; exactly tempfile's eight letters: another process may be
        # preparing a data set called <name>-small
        for leftover in data.cache_path.glob(f".{glob.escape(data.name)}-{'[a-z0-9_]' * 8}.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield

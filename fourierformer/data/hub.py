"""Data from the Hugging Face hub: a check of its availability, and a download into plain token files."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from fourierformer.data.location import DataLocation, Say
from fourierformer.data.text.sources import SPLITS, rows_to_bytes
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError
from fourierformer.files import replacing
from fourierformer.network import first_hop, reachable

_HUB_NAMES = {"train": "train", "valid": "validation", "test": "test"}
PROBE_SECONDS = 1.0  # a working network answers in a tenth of it; without one, the message must not wait long


def why_unreachable(data: DataLocation) -> str:
    """The reason why neither the hub nor its local copy has this set; empty if one of them has it. Takes at most
    PROBE_SECONDS; without a network, load_dataset would retry for 23 s before it fails."""
    if not data.hub:
        return "no hub is known to have it"
    if cached_files(data, "train"):
        return ""
    offline = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    if not {"1", "ON", "YES", "TRUE"}.isdisjoint(offline):
        return f"the hub ({data.hub}) is switched off (HF_HUB_OFFLINE)"
    from huggingface_hub import constants

    host, port = first_hop(urlsplit(constants.ENDPOINT))
    if reachable(host, port, PROBE_SECONDS):
        return ""
    return f"the hub ({data.hub}) cannot be reached: no answer from {host}"


def download(data: TextData, folder: Path, say: Say) -> None:
    """Write wiki.{train,valid,test}.tokens, one row per line, blank rows included."""
    if data.unit not in ("word", "bpe") or not data.hub:
        raise SetupError(f"no hub has data '{data.name}' in a form that can be read: put its files into {data.root}")
    if reason := why_unreachable(data):
        raise SetupError(f"data '{data.name}': {reason}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            say(f"fetching {data.hub} {data.hub_config or ''}: {split}")
            _fetch(data, split, folder)
    except SetupError:
        raise
    except Exception as error:  # datasets and its network layers raise many kinds of errors
        raise SetupError(f"fetching {data.hub} into {folder} failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def downloaded(data: TextData, say: Say) -> Iterator[TextData]:
    """A context with the data downloaded from the hub: `data` with a temporary folder as its root."""
    cache = data.cache_path
    with tempfile.TemporaryDirectory(".tmp", f".{data.name}-", cache, ignore_cleanup_errors=True) as folder:
        download(data, Path(folder), say)
        yield replace(data, root=folder)


def datasets_library():
    """Hugging Face's `datasets`, with its progress bars on a terminal only: they would fill a log file."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def cached_rows(paths: list[Path]):
    """The table in files of `cached_files`, read directly: load_dataset would connect to the network first."""
    datasets = datasets_library()
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in paths])


def _fetch(data: TextData, split: str, folder: Path) -> None:
    if cached := cached_files(data, _HUB_NAMES[split]):
        rows = cached_rows(cached)
    else:
        rows = datasets_library().load_dataset(data.hub, data.hub_config, split=_HUB_NAMES[split])
    with replacing(folder / f"wiki.{split}.tokens") as file:
        for batch in rows.iter(batch_size=10_000):
            file.write(rows_to_bytes(batch["text"], str(data.hub)))


def cached_files(data: DataLocation, name: str) -> list[Path]:
    """Files of the split `name` in the copy of `datasets`, found by folder names: its import takes over a second."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(os.environ.get("HF_HOME", f"{caches}/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    folder = cache / str(data.hub).replace("/", "___") / (data.hub_config or "default")
    # <version>/<hash>/wikitext-train.arrow, or several -00000-of-00002.arrow; of several builds the newest. A killed or
    # another process leaves <hash>.incomplete. The set itself may be called my-test-set.
    finished = (path for path in folder.glob("*/*") if path.is_dir() and path.suffix != ".incomplete")
    builds = sorted(finished, key=lambda path: path.stat().st_mtime)
    of_split = re.compile(rf".*-{name}(-\d+-of-\d+)?\.arrow")
    return sorted(path for path in builds[-1].iterdir() if of_split.fullmatch(path.name)) if builds else []

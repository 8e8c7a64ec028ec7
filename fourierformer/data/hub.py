"""The Hugging Face hub as a source: quick to say whether it can serve, and a download into plain token files."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from fourierformer.data.prepared import Progress
from fourierformer.data.text.sources import SPLITS, rows_to_bytes
from fourierformer.data.text.spec import TextData
from fourierformer.errors import SetupError

_HUB_NAMES = {"train": "train", "valid": "validation", "test": "test"}
PROBE_SECONDS = 1.0  # a live network answers in a tenth of that; a dead one must not hold up the message


class Hosted(Protocol):
    """A data set, of text or of images, that the hub may hold."""

    @property
    def hub(self) -> str | None: ...

    @property
    def hub_config(self) -> str | None: ...


def why_unreachable(data: Hosted) -> str:
    """Empty if the hub or its local copy can serve this set, else why not, within PROBE_SECONDS.

    Left to itself, load_dataset retries for 23 s without a network before it says so.
    """
    if not data.hub:
        return "no hub is known to hold it"
    if cached_files(data, "train"):
        return ""
    if _offline():
        return f"the hub ({data.hub}) is switched off (HF_HUB_OFFLINE)"
    host, port = _address()
    answered = threading.Event()

    def knock():
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=PROBE_SECONDS):
            answered.set()

    # in a thread, because looking up a name has no time limit of its own
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return "" if answered.is_set() else f"the hub ({data.hub}) cannot be reached: no answer from {host}"


def download(data: TextData, folder: Path, progress: Progress) -> None:
    """Writes wiki.{train,valid,test}.tokens, one row per line, blank rows included."""
    if data.unit != "word" or not data.hub:
        raise SetupError(f"no hub holds data '{data.name}' in the form it needs: put its files into {data.root}")
    reason = why_unreachable(data)
    if reason:
        raise SetupError(f"data '{data.name}': {reason}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            progress(f"fetching {data.hub} {data.hub_config or ''}: {split}")
            _fetch(data, split, folder)
    except Exception as error:  # datasets and its network layers raise many kinds; the user needs the one sentence
        raise SetupError(f"fetching {data.hub} into {folder} failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def downloaded(data: TextData, progress: Progress) -> Iterator[TextData]:
    """The same data with its root in a folder that is filled from the hub and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f".{data.name}-hub-", suffix=".tmp", dir=data.cache_path))
    try:
        download(data, folder, progress)
        yield replace(data, root=str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(data: TextData, split: str, folder: Path) -> None:
    import datasets

    cached = cached_files(data, _HUB_NAMES[split])
    if cached:  # read directly: load_dataset would knock at the network first
        rows = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in cached])
    else:
        rows = datasets.load_dataset(data.hub, data.hub_config, split=_HUB_NAMES[split])
    aside = folder / f".{split}.tmp"
    try:
        with open(aside, "wb") as file:
            for batch in rows.iter(batch_size=10_000):
                file.write(rows_to_bytes(batch["text"]))
        aside.rename(folder / f"wiki.{split}.tokens")
    finally:
        aside.unlink(missing_ok=True)


def cached_files(data: Hosted, name: str) -> list[Path]:
    """Files of the split called `name` in the copy that `datasets` keeps, by its folder names: importing it to ask
    takes over a second."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    folder = cache / str(data.hub).replace("/", "___") / (data.hub_config or "default")
    # <version>/<hash>/wikitext-train.arrow, or several -00000-of-00002.arrow; the newest build counts
    builds = sorted((path for path in folder.glob("*/*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    return sorted(builds[-1].glob(f"*-{name}*.arrow")) if builds else []


def _offline() -> bool:
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def _address() -> tuple[str, int]:
    """Host and port to knock at: the proxy if there is one, else the hub's own."""
    from huggingface_hub import constants

    proxies = (os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    url = urlsplit(next(filter(None, proxies), constants.ENDPOINT))
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)

"""Write the state file of a checkpoint: check its content, compute its size, and its sha256 while writing."""

import hashlib
import os
from collections import OrderedDict
from pathlib import Path

import torch

PLAIN = {int, float, bool, str, type(None)}
TENSORS = {torch.Tensor, torch.nn.Parameter}


def require_plain(value, where: str) -> None:
    """TypeError for a value that torch.load(weights_only=True) would refuse later: numpy scalars, config objects."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key, item in value.items():
            require_plain(key, f"a key of {where}")
            require_plain(item, f"{where}[{key!r}]")
    elif kind in (list, tuple):
        for index, item in enumerate(value):
            require_plain(item, f"{where}[{index}]")
    elif kind not in PLAIN | TENSORS:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"{where} is a {name}; checkpoints hold tensors and plain types only")


def state_bytes(state: dict) -> int:
    """Upper bound of the file's bytes: each storage once (tied weights share one), 2 % and 1 MiB for the archive."""
    storages: dict[int, int] = {}
    stack: list[object] = [state]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict | list | tuple):
            stack.extend(value.values() if isinstance(value, dict) else value)
    return int(1.02 * sum(storages.values())) + 2**20


def write_state(path: Path, state: dict) -> dict:
    """Write the file and sync it to the disk. Returns its size and sha256, for the manifest."""
    with open(path, "wb") as raw:
        file = HashedFile(raw)
        torch.save(state, file)  # type: ignore[arg-type]  # annotated as IO[bytes]; it calls write and flush only
        if file.error:
            raise file.error
        raw.flush()
        os.fsync(raw.fileno())
    return {"bytes": file.bytes, "sha256": file.hash.hexdigest()}


class HashedFile:
    """A file that computes the sha256 of its content while writing. A failed write sets `error`, because torch.save's
    C++ writer would try to finish the archive and report that failure instead of the full disk."""

    def __init__(self, raw):
        self.raw, self.hash, self.bytes = raw, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data) -> int:
        size = memoryview(data).nbytes
        if self.error is None:
            try:
                self.raw.write(data)
            except OSError as error:
                self.error = error
            self.hash.update(data)
            self.bytes += size
        return size

    def flush(self) -> None:
        """Called by torch.save, without effect: write_state flushes and syncs."""

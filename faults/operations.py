"""Counts the file operations of this process under a folder, and makes one of them go wrong.

Python reports opening, renaming, deleting and the like to audit hooks, where an exception makes the operation fail;
writes, syncs and truncations are patched. A hook cannot be removed: use it in a child (children.py) only.
"""

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
TAKES_SPACE = {"open", "write", "mkdir", "fsync"}  # what a full disk refuses; renaming and deleting still work on it


class FileOperations:
    """`fault` is called instead of operation number `at`, or of every one from there on with `lasting`."""

    def __init__(self, root: Path, at: int | None = None, fault: Callable | None = None, lasting: bool = False):
        self.root, self.at, self.fault, self.lasting = str(root), at, fault, lasting
        self.names: list[str] = []

    def install(self) -> "FileOperations":
        sys.addaudithook(self._hear)
        builtins.open = io.open = self._open
        for name in ("fsync", "write", "pwrite"):
            setattr(os, name, self._patched(name, getattr(os, name)))
        return self

    def happens(self, name: str, path: object, data: bytes = b"", write: Callable | None = None) -> None:
        """Notes an operation, and lets it go wrong if it is its turn. Of a write a part goes through before."""
        path = _absolute(path)
        if not path.startswith(self.root):
            return
        self.names.append(name)
        turn = len(self.names) - 1
        if self.at is None or self.fault is None or turn < self.at or (turn > self.at and not self.lasting):
            return
        if turn == self.at and write and len(data) > 1:
            write(bytes(data[: len(data) // 2]))
        self.fault(name, path)

    def _hear(self, event: str, arguments: tuple) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self.happens("open", arguments[0])
        elif event in CHANGES:
            path = arguments[0]
            folder = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            if isinstance(folder, int) and folder >= 0 and isinstance(path, str):
                path = os.path.join(_absolute(folder), path)  # as shutil.rmtree deletes
            self.happens(event.removeprefix("os."), path)

    def _patched(self, name: str, original: Callable) -> Callable:
        def call(handle, *arguments):
            data = arguments[0] if arguments else b""
            kind = "write" if arguments else name
            self.happens(kind, handle, data, (lambda part: original(handle, part, *arguments[1:])) if data else None)
            return original(handle, *arguments)

        return call

    def _open(self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        """As the built-in one, but writes go through `happens`."""
        if not set(mode) & set("wax+"):
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.watch = self.happens
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text


class _Raw(io.FileIO):
    watch: Callable

    def write(self, data):
        self.watch("write", self.fileno(), data, super().write)
        return super().write(data)


_real_open = io.open


def _absolute(path: object) -> str:
    try:
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        return os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        return ""


def kill(name: str, path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full(name: str, path: str) -> None:
    if name in TAKES_SPACE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def not_permitted(name: str, path: str) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def broken_disk(name: str, path: str) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)

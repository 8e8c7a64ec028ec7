"""Writes and reads metrics.jsonl: one JSON object per line, append-only; tables and curves are made from it.

Every line is passed to the kernel at once, so killing the process loses nothing. A checkpoint stores `position()`, and
resuming from it calls `rewind()`, so that no step appears twice. Non-finite numbers are written as NaN and Infinity, as
Python's json reads them.
"""

import json
import os
from pathlib import Path

from fourierformer.errors import UserError
from fourierformer.files import open_own


class JsonlTracker:
    def __init__(self, path: Path | str):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0, opener=open_own)  # noqa: SIM115 (closed in close)
            self._drop_torn_line()
        except OSError as error:
            raise self._failure(error) from error

    def log(self, row: dict) -> None:
        line = memoryview(json.dumps(row).encode() + b"\n")
        try:
            while line:  # a raw write may write only a part, for example to the last free block of a disk
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._failure(error) from error

    def summary(self, values: dict) -> None:
        """Writes nothing: the final numbers are in the run's summary.json."""

    def position(self) -> int:
        """The length of the file in bytes, after syncing it to the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        return os.fstat(self._file.fileno()).st_size

    def rewind(self, offset: int) -> None:
        """Drops every row after `offset`, a value that position() returned."""
        size = os.fstat(self._file.fileno()).st_size
        if size < offset or (offset > 0 and os.pread(self._file.fileno(), 1, offset - 1) != b"\n"):
            raise UserError(
                f"{self.path} ({size} bytes) does not have the {offset} bytes of rows that it had when the checkpoint "
                "was saved: it was shortened or edited. Restore it from a copy, or start again with fresh=true."
            )
        os.ftruncate(self._file.fileno(), offset)

    def close(self, exit_code: int) -> None:
        self._file.close()

    def _drop_torn_line(self) -> None:
        """Removes an incomplete last line, which a process leaves that is killed inside write()."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file.fileno(), whole)

    def _failure(self, error: OSError) -> UserError:
        return UserError(
            f"Cannot write {self.path} ({error.strerror}). "
            "Make room or fix the permissions; the same command resumes from the last checkpoint."
        )


def read_metrics(path: Path | str) -> list[dict]:
    """All rows of the file, without an incomplete last line (of a process that is writing, or was killed); [] if there
    is no file yet."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(
                f"{path}, line {number} is damaged ({error}): delete that line or restore the file from a copy."
            ) from error
    return rows

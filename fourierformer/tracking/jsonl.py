"""Write and read metrics.jsonl: one JSON object per line, append-only, the source of tables and curves.

Every line is passed to the kernel at once, so killing the process loses none. A checkpoint stores `position()`, and
resuming from it calls `rewind()`, so that no step appears twice. Non-finite numbers are written as NaN and Infinity, as
Python's json reads them. The last key of a line, `check`, is a checksum of the line and of the check before it, by
which a reader detects a changed line, and the line after a missing one. Files of earlier versions have no checks.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from fourierformer.errors import UserError
from fourierformer.files import open_own, require_small

LARGEST = 2**32  # bytes, of ten million rows
CHECK = re.compile(rb', "check": "([0-9a-f]{16})"}$')


@dataclass
class Lines:
    """The content of a metrics file: its rows without their checks, and the numbers of damaged lines."""

    rows: list[dict] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    check: str = ""  # the last one


def read_lines(data: bytes) -> Lines:
    """Read the content of a metrics file, up to its last complete line."""
    lines = Lines()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        if not line:
            continue
        found = CHECK.search(line)
        text = line[: found.start()] + b"}" if found else line
        intact = _check(lines.check, text) == found[1].decode() if found else not lines.check
        row = _object(text) if intact else None
        if row is None:
            lines.damaged.append(number)
        else:
            lines.rows.append(row)
        if found:
            lines.check = found[1].decode()
    return lines


def _check(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()[:16]


def _object(text: bytes) -> dict | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


class JsonlTracker:
    def __init__(self, path: Path | str):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0, opener=open_own)  # noqa: SIM115 (closed in close)
            require_small(self.path, LARGEST)
            self._check = read_lines(self._drop_torn_line()).check
        except ValueError as error:
            way_out = "Restore it from a copy, or start again with fresh=true."
            raise UserError(f"{self.path} is damaged ({error}). {way_out}") from error
        except OSError as error:
            raise self._failure(error) from error

    def log(self, row: dict) -> None:
        text = json.dumps(row).encode()
        check = _check(self._check, text)
        line = memoryview(text[:-1] + f', "check": "{check}"}}\n'.encode())
        try:
            while line:  # a raw write may be partial, for example in the last free block of a disk
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._failure(error) from error
        self._check = check

    def position(self) -> int:
        """The length of the file in bytes, after syncing it to the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        return os.fstat(self._file.fileno()).st_size

    @property
    def last_check(self) -> str:
        """The checksum of all rows so far."""
        return self._check

    def rewind(self, offset: int, check: str | None = None) -> None:
        """Drop every row after `offset`, a value of position(). UserError unless the rows before it have this
        `last_check`, if given."""
        size = os.fstat(self._file.fileno()).st_size
        if size < offset or (offset > 0 and os.pread(self._file.fileno(), 1, offset - 1) != b"\n"):
            raise UserError(
                f"{self.path} ({size} bytes) does not have the {offset} bytes of rows that it had when the checkpoint "
                "was saved: it was shortened or edited. Restore it from a copy, or start again with fresh=true."
            )
        lines = read_lines(os.pread(self._file.fileno(), offset, 0))
        if lines.damaged:
            way_out = "Restore the file from a copy, or start again with fresh=true."
            damage = f"line {lines.damaged[0]} is damaged: it does not match its checksum"
            raise UserError(f"{self.path}, {damage}. {way_out}")
        if check is not None and lines.check != check:
            way_out = "Restore its own from a copy, or start again with fresh=true."
            raise UserError(f"{self.path} is the log of another run than the checkpoint. {way_out}")
        os.ftruncate(self._file.fileno(), offset)
        self._check = lines.check

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return len(read_lines(self.path.read_bytes()).rows)

    def close(self, exit_code: int) -> None:
        self._file.close()

    def _drop_torn_line(self) -> bytes:
        """Remove an incomplete last line, left by a process killed inside write(). Returns the others."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file.fileno(), whole)
        return data[:whole]

    def _failure(self, error: OSError) -> UserError:
        way_out = "Make room or fix the permissions; the same command resumes from the last checkpoint."
        return UserError(f"Cannot write {self.path} ({error.strerror}). {way_out}")

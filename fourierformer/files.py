"""Atomic writes; JSON files with a checksum, and CSV files."""

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from fourierformer.errors import SetupError, UserError

csv.field_size_limit(2**30)  # a cell of ours may hold a run's evaluations; Python stops at 131,072 characters


def unused_name(path: Path) -> Path:
    """A name beside `path` for a file that is renamed when it is complete. It has this process's number, by which files
    of killed processes are found, and cannot be guessed: at a known name a link may wait. To be opened with mode "x",
    which creates a file and follows no link."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A context that turns errors of the disk into a UserError with a way out."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): free space or choose a writable folder") from error


def own_folder(path: Path) -> Path:
    """Create a folder for files of ours. SetupError where it cannot be made, or is a link, which may lead into a folder
    of others and have their files replaced."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"the folder {path} cannot be made ({error.strerror}): choose another one") from None
    if path.is_symlink():
        raise SetupError(f"{path} is a symbolic link: name the folder that it leads to, or remove the link")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces `path` atomically at the end of the context: a crash leaves the old or the new one."""
    aside = unused_name(path)
    try:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def atomic_write_text(path: Path, text: str) -> None:
    r"""Replace the file by `text`, see `replacing`. Half of a surrogate pair, which UTF-8 has not, becomes \ud800."""
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def open_own(path: str, flags: int) -> int:
    """Open a file of a run, to be written in place; an opener for open(). OSError for anything but a plain file: the
    target of a link must not be overwritten."""
    try:
        handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, f"{os.path.basename(path)} is a symbolic link", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"{os.path.basename(path)} is no plain file", path)
    return handle


def write_json(path: Path, values: dict) -> None:
    """Replace the file by `values` and their checksum, which read_json compares."""
    atomic_write_text(path, json.dumps(values | {CHECKSUM: checksum(values)}, indent=2) + "\n")


def read_json(path: Path) -> dict | None:
    """The object in a JSON file; None if there is no such file, UserError if it is damaged."""
    try:
        return json_object(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): restore it from a copy, or delete it.") from error


def json_object(path: Path) -> dict:
    """The object in a JSON file; FileNotFoundError if there is none, ValueError with the reason if it is damaged. A
    file without a checksum (of an earlier version, or written by hand) is accepted."""
    try:
        require_small(path)
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, RecursionError) as error:
        raise ValueError(getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, not an object")
    if values.pop(CHECKSUM, None) not in (None, checksum(values)):
        raise ValueError("its content does not match its checksum: it was changed after it was written")
    return values


def require_small(path: Path, largest: int = 2**28) -> None:
    """ValueError for anything but a plain file of at most so many bytes: reading a pipe would wait for ever, and a file
    with holes can be larger than the memory. FileNotFoundError if there is none."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a file")
    if status.st_size > largest:
        raise ValueError(f"it has {status.st_size:,} bytes, and such a file has at most {largest:,}")


def size_text(count: int) -> str:
    """'1.50 GiB', '12.0 MiB'."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def checksum(values: object) -> str:
    """sha256 of plain values, independent of spaces and of the order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CHECKSUM = "checksum"  # its key in a JSON file
FORMULA = r"[-+=@\t]"  # how a cell begins that spreadsheets compute


@dataclass(frozen=True)
class CsvFile:
    """`comments` are the lines at the top that begin with #, without it; cells are the text of the file."""

    comments: list[str]
    columns: list[str]
    rows: list[dict[str, str]]


def read_csv(path: Path) -> CsvFile:
    """Read a CSV file of this repository: runs, measurements, reference curves, the paper's numbers. Removes the quotes
    by which `write_csv` prevents formulas."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not a CSV file in UTF-8 ({error.reason}): restore it from a copy.") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    rows = csv.DictReader(lines[len(comments) :])
    rows.fieldnames = list(map(_unquoted, rows.fieldnames or ()))
    read = [{key: _unquoted(value) for key, value in row.items()} for row in rows]
    return CsvFile([line[1:].strip() for line in comments], list(rows.fieldnames), read)


def write_csv(
    path: Path, rows: Sequence[Mapping], head: str = "", *, columns: Iterable[str] | None = None, digits: int = 5
) -> None:
    """Replace a CSV file by these rows, below the comment lines `head` (see provenance.header). Columns are those of
    the first row unless given; numbers have `digits` digits, None and NaN are empty."""
    text = io.StringIO()
    columns = list(columns or rows[0])
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writerow({column: _written(column, digits) for column in columns})
    writer.writerows({key: _written(value, digits) for key, value in row.items()} for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, head + text.getvalue())
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}. Choose a place that you can write to.") from None


def _unquoted(value):
    """A cell without the quote of `_written`; surplus or missing cells of a row are no text."""
    return value[1:] if isinstance(value, str) and re.match(f"'+{FORMULA}", value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "-"  # a missing value
    return text == text.strip()


def _written(value: object, digits: int) -> object:
    """A cell. Spreadsheets compute text that begins as a formula does, so it gets a quote, which they do not show;
    numbers that were written by the caller stay as they are. A carriage return would end the line for many readers."""
    value = value.replace("\r", r"\r") if isinstance(value, str) else value
    if isinstance(value, str) and re.match(f"'*{FORMULA}", value) and not _is_number(value):
        return f"'{value}"
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.{digits}g}"

"""A run directory, `runs/<experiment>/<model>-<attention>-s<seed>-<hash>/`: its files, lock, status and origin.

- config.yaml: the resolved config
- metrics.jsonl: every logged row; tables and curves on other services are copies of it
- checkpoints/: see training/checkpoint.py
- status.json: running | completed | failed | interrupted | diverged, the last step, the error
- summary.json: the final numbers; tables are made from these
- data.json: what the trained model must know of its data: vocabulary, names of classes
- meta.json, dirty.diff: commit, uncommitted changes, versions, hardware, command
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fourierformer.errors import SetupError, UserError
from fourierformer.files import atomic_write_text, read_json
from fourierformer.provenance import describe


class RunDirectory:
    """Reads, writes and locks one run directory."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.name = self.path.name
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.status = self.path / "status.json"
        self.summary = self.path / "summary.json"
        self.meta = self.path / "meta.json"
        self.data_facts = self.path / "data.json"
        self.checkpoints = self.path / "checkpoints"

    def create(self) -> None:
        """Makes the directory. SetupError if it cannot be written, so that a run fails at its start, not at a save."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> SetupError:
        return SetupError(
            f"Cannot write the run directory {self.path} ({error.strerror}). "
            "Choose a folder that you can write to: runs_root=/some/path"
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Creates the directory and locks it for this process. The kernel drops the lock when the process ends, however
        it ends."""
        self.create()
        try:
            handle = self._acquire()
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            yield
        finally:
            # The file is not deleted: two later processes could then lock two different files of the same name.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
            os.close(handle)

    def _acquire(self) -> int:
        path = self.path / ".lock"
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(handle, 32).decode().strip() or "unknown"
                os.close(handle)
                raise SetupError(
                    f"Another process (pid {pid}) is using {self.path}. Wait for it, or stop it (kill {pid}) and run "
                    "this command again, or change the command (another seed, another runs_root=): another directory."
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    os.close(handle)
                    raise
                warnings.warn(
                    f"{self.path} is on a file system without locks: do not start this run twice.", stacklevel=4
                )
                return handle
            # Another process may have moved the directory aside between our open and our lock: then the locked file is
            # not the one of this path.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                    return handle
            os.close(handle)
            self.create()

    def set_aside(self) -> Path | None:
        """Renames the directory to `<name>.old-<n>` (never deletes) and returns the new path; None when there was no
        directory. Call before lock()."""
        if not self.path.exists():
            return None
        with self.lock():  # a directory that a running process uses must not be moved
            number = 1
            while (target := self.path.with_name(f"{self.name}.old-{number}")).exists():
                number += 1
            try:
                os.rename(self.path, target)
            except OSError as error:
                raise SetupError(
                    f"Cannot move {self.path} aside ({error.strerror}). Move it yourself, or choose another runs_root=."
                ) from error
        return target

    def write_status(self, state: str, **fields) -> None:
        """Replaces status.json; `step` and `steps` are kept from the last one when not given. Does not raise for a full
        disk: a run can do without it, and it is often written while another error is being handled."""
        try:
            before = self.read_status() or {}
        except UserError:
            before = {}
        status = {"state": state} | {key: before[key] for key in ("step", "steps") if key in before} | fields
        status |= {"updated": _now(), "pid": os.getpid(), "host": socket.gethostname()}
        try:
            atomic_write_text(self.status, json.dumps(status, indent=2) + "\n")
        except OSError as error:
            warnings.warn(f"{self.status} could not be written ({error.strerror}).", stacklevel=2)

    def read_status(self) -> dict | None:
        return read_json(self.status)

    def write_summary(self, summary: dict) -> None:
        self._write_json(self.summary, summary)

    def read_summary(self) -> dict | None:
        return read_json(self.summary)

    def write_data_facts(self, facts: dict) -> None:
        self._write_text(self.data_facts, json.dumps(facts, ensure_ascii=False) + "\n")

    def read_data_facts(self) -> dict | None:
        return read_json(self.data_facts)

    def write_meta(self, **extra) -> dict:
        """Writes the origin of this start of the run to meta.json and returns it. A resumed run keeps a line for each
        earlier start."""
        origin, diff = describe()
        try:
            before = self.read_meta() or {}
        except UserError:
            before = {}
        earlier = before.pop("earlier", [])
        if before:
            earlier.append({key: before.get(key) for key in ("started", "commit", "dirty", "command")})
        meta = {"started": _now()} | origin | extra | {"earlier": earlier}
        if diff:
            meta["dirty_diff"] = "dirty.diff"
            self._write_text(self.path / "dirty.diff", diff)
        self._write_json(self.meta, meta)
        return meta

    def read_meta(self) -> dict | None:
        return read_json(self.meta)

    def _write_json(self, path: Path, values: dict) -> None:
        self._write_text(path, json.dumps(values, indent=2) + "\n")

    def _write_text(self, path: Path, text: str) -> None:
        try:
            atomic_write_text(path, text)
        except OSError as error:
            raise UserError(
                f"Cannot write {path} ({error.strerror}). Make room or fix the permissions; the same command resumes."
            ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""A run directory, `runs/<experiment>/<model>-<attention>-s<seed>-<hash>/`: its files, lock, status and origin.

- config.yaml: the resolved config
- metrics.jsonl: every logged row; tables and curves on other services are copies of it
- checkpoints/: see training/checkpoint.py
- status.json: running | completed | failed | interrupted | diverged, the last step, the error
- summary.json: the final numbers; tables are made from these
- meta.json, dirty.diff: commit, uncommitted changes, versions, hardware, command; fingerprint of the data
- data.json: what the trained model must know of its data: vocabulary, names of classes
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fourierformer.errors import SetupError, UserError
from fourierformer.files import atomic_write_text, open_own, read_json, write_json
from fourierformer.provenance import describe

# what a run has that was killed at its start
EARLY_FILES = {".lock", "status.json", "config.yaml", "meta.json", "dirty.diff"}
# what a killed process may leave beside them: files that were being replaced, and the test whether one can write
LITTER = re.compile(r"\..+\.(\d+)\.tmp|\.writable\.(\d+)")
RESUMES = "the same command resumes."


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
        self.evaluation = self.path / "evaluation.json"
        self.wandb_id = self.path / "wandb_id"
        self.report = self.path / "report.html"
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
        for path in (
            self.config,
            self.metrics,
            self.status,
            self.summary,
            self.meta,
            self.evaluation,
            self.report,
            self.data_facts,
        ):
            _require_file(path)

    def _not_writable(self, error: OSError) -> SetupError:
        return SetupError(
            f"Cannot write the run directory {self.path} ({error.strerror}). "
            "Choose a folder that you can write to: runs_root=/some/path"
        )

    def check_ours(self) -> None:
        """SetupError for a folder with files of others: a run would mix its own with them, and fresh=true move them
        away."""
        try:
            names = {path.name for path in self.path.iterdir() if not LITTER.fullmatch(path.name)}
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._not_writable(error) from error
        is_run = "config.yaml" in names and names & {"status.json", "meta.json"}
        if not is_run and names - EARLY_FILES:
            raise SetupError(
                f"{self.path} is not a run directory and not empty (it has {min(names - EARLY_FILES)}): choose another "
                "folder with run_dir="
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
        self.remove_litter()
        try:
            yield
        finally:
            # The file is not deleted: two later processes could then lock two different files of the same name.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
            os.close(handle)

    def remove_litter(self) -> None:
        """Deletes what killed processes have left, not what a script is writing now (a report, say)."""
        with contextlib.suppress(OSError):
            for path in list(self.path.iterdir()):
                litter = LITTER.fullmatch(path.name)
                pid = int(litter[1] or litter[2]) if litter else 0
                if litter and (pid == os.getpid() or not process_exists(pid)):
                    path.unlink()

    def _acquire(self) -> int:
        path = self.path / ".lock"
        while True:
            handle = open_own(str(path), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
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
                    if not re.fullmatch(rb"\d*\s*", os.pread(handle, 64, 0)):
                        os.close(handle)
                        raise OSError(errno.EEXIST, ".lock is not a lock file of ours", str(path))
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
            write_json(self.status, status)
        except OSError as error:
            warnings.warn(f"{self.status} could not be written ({error.strerror}).", stacklevel=2)

    def read_status(self) -> dict | None:
        return read_json(self.status)

    def write_summary(self, summary: dict) -> None:
        self.write(self.summary, summary)

    def read_summary(self) -> dict | None:
        return read_json(self.summary)

    def write_data_facts(self, facts: dict) -> None:
        self.write(self.data_facts, facts)

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
        earlier = [start for start in earlier if isinstance(start, dict)] if isinstance(earlier, list) else []
        if before:
            earlier.append({key: before.get(key) for key in ("started", "commit", "dirty", "command", "cpu")})
        kept = {key: before[key] for key in ("data_fingerprint",) if key in before}
        meta = {"started": _now()} | origin | extra | kept | {"earlier": earlier}
        if diff:
            meta["dirty_diff"] = "dirty.diff"
            self.write(self.path / "dirty.diff", diff)
        self.write(self.meta, meta)
        return meta

    def add_to_meta(self, **facts) -> None:
        self.write(self.meta, (self.read_meta() or {}) | facts)

    def read_meta(self) -> dict | None:
        return read_json(self.meta)

    def write(self, path: Path, content: dict | str) -> None:
        """Replaces a file of the run; UserError, with a way out, where that is not possible."""
        try:
            if isinstance(content, str):
                atomic_write_text(path, content)
            else:
                write_json(path, content)
        except OSError as error:
            raise UserError(
                f"Cannot write {path} ({error.strerror}). Make room or fix the permissions; the same command resumes."
            ) from error


def _require_file(path: Path) -> None:
    """SetupError where something stands in the place of a file that a run could not read or replace."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:  # a link that leads to itself, say
        raise SetupError(f"{path} cannot be used ({error.strerror}). Move it away; {RESUMES}") from None
    if not is_file:
        raise SetupError(f"{path} is not a file, but a folder or the like. Move it away; {RESUMES}")
    if not os.access(path, os.R_OK):
        raise SetupError(f"{path} may not be read. Fix its permissions; {RESUMES}")


def process_exists(pid) -> bool:
    """Whether this machine has a process of that number. Signal 0 asks without disturbing it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:  # somebody else's process, so there is one
        return True
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

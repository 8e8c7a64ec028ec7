"""A run directory, `runs/<experiment>/<model>-<attention>-s<seed>-<hash>/`: its files, lock, status and origin.

- config.yaml: the resolved config
- metrics.jsonl: every logged row, the source of tables and curves
- checkpoints/: see training/checkpoint.py
- status.json: running | completed | failed | interrupted | diverged, the last step, the error
- summary.json: the final numbers; tables are made from these
- evaluation.json: measurements of the best checkpoint, each written when it is done
- heads.json, robustness.json: what scripts/head_redundancy.py and scripts/robustness.py measured
- meta.json, dirty.diff: commit, uncommitted changes, versions, hardware, command; fingerprint of the data
- data.json: the facts of the data that the trained model needs: vocabulary, names of classes
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import socket
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from fourierformer.errors import SetupError, UserError
from fourierformer.files import atomic_write_text, open_own, read_json, unused_name, write_json
from fourierformer.provenance import describe

# files of a run that was killed at its start
EARLY_FILES = {".lock", "status.json", "config.yaml", "meta.json", "dirty.diff"}
# left by a killed process beside them: files that were being replaced, and the probe for write access (as this version
# names them, and as earlier ones did)
LITTER = re.compile(r"\..+\.(\d+)(?:-[0-9a-f]{16})?\.tmp|\.writable\.(\d+)")
POSITION = ("step", "steps", "seconds")  # in status.json: where the run is, and the time in training
RESUMES = "the same command resumes."


class RunDirectory:
    """Read, write and lock one run directory."""

    def __init__(self, path: Path | str):
        self.path = path = Path(path)
        self.name = path.name
        self.config, self.meta, self.data_facts = path / "config.yaml", path / "meta.json", path / "data.json"
        self.status, self.summary = path / "status.json", path / "summary.json"
        self.metrics, self.evaluation = path / "metrics.jsonl", path / "evaluation.json"
        self.report, self.wandb_id, self.checkpoints = path / "report.html", path / "wandb_id", path / "checkpoints"

    def create(self) -> None:
        """Create the directory. SetupError if it cannot be written, so that a run fails at its start, not at a save."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = unused_name(self.path / "writable")
            open(probe, "xb").close()
            probe.unlink()
        except OSError as error:
            raise self._not_writable(error) from error
        if self.checkpoints.is_symlink():  # checkpoints of others would be deleted
            raise SetupError(f"{self.checkpoints} is a symbolic link. Move what it leads to here; {RESUMES}")
        rewritten = (self.status, self.summary, self.meta, self.evaluation, self.report, self.data_facts)
        for path in (self.config, self.metrics, *rewritten):
            _require_file(path)

    def _not_writable(self, error: OSError) -> SetupError:
        way_out = "Choose a folder that you can write to: runs_root=/some/path"
        if error.errno == errno.ENAMETOOLONG:
            way_out = "Choose a shorter experiment_name= or run_dir="
        return SetupError(f"Cannot write the run directory {self.path} ({error.strerror}). {way_out}")

    def check_ours(self) -> None:
        """SetupError for a folder with foreign files: a run would mix its own with them, and fresh=true move them."""
        try:
            names = {path.name for path in self.path.iterdir() if not LITTER.fullmatch(path.name)}
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._not_writable(error) from error
        is_run = "config.yaml" in names and names & {"status.json", "meta.json"}
        if not is_run and names - EARLY_FILES:
            problem = f"is not a run directory and not empty (it has {min(names - EARLY_FILES)})"
            raise SetupError(f"{self.path} {problem}: choose another folder with run_dir=")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Create the directory and lock it for this process; the kernel drops the lock at any end of the process."""
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
        """Delete the files left by killed processes, not those that a living one is writing (a report)."""
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
                message = f"{self.path} is on a file system without locks: do not start this run twice."
                warnings.warn(message, stacklevel=4)
                return handle
            # another process may have moved the directory aside between open and lock: then the lock is of another file
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
        """Rename the directory to `<name>.old-<n>`, never delete it. Returns the new path or None. Before lock()."""
        if not self.path.exists():
            return None
        with self.lock():  # a directory that a running process uses must not be moved
            number = 1
            while (target := self.path.with_name(f"{self.name}.old-{number}")).exists():
                number += 1
            try:
                os.rename(self.path, target)
            except OSError as error:
                way_out = "Move it yourself, or choose another runs_root=."
                raise SetupError(f"Cannot move {self.path} aside ({error.strerror}). {way_out}") from error
        return target

    def write_status(self, state: str, **fields) -> None:
        """Replace status.json; what is in POSITION is kept unless given. A full disk is a warning only: the file is not
        essential, and often written while another error is handled."""
        before = readable(self.status)
        status = {"state": state} | {key: before[key] for key in POSITION if key in before} | fields
        status |= {"updated": _now(), "pid": os.getpid(), "host": socket.gethostname()}
        try:
            write_json(self.status, status)
        except OSError as error:
            warnings.warn(f"{self.status} could not be written ({error.strerror}).", stacklevel=2)

    def write_meta(self, **extra) -> dict:
        """Write the origin of this start of the run to meta.json and return it; earlier starts keep a line each."""
        origin, diff = describe()
        before = readable(self.meta)
        earlier = before.pop("earlier", [])
        earlier = [start for start in earlier if isinstance(start, dict)] if isinstance(earlier, list) else []
        if before:
            earlier.append({key: before.get(key) for key in ("started", "commit", "dirty", "command", "cpu")})
        kept = {key: before[key] for key in ("data_fingerprint", "init_from") if key in before}
        meta = {"started": _now()} | origin | extra | kept | {"earlier": earlier}
        if diff:
            meta["dirty_diff"] = "dirty.diff"
            self.write(self.path / "dirty.diff", diff)
        self.write(self.meta, meta)
        return meta

    def write(self, path: Path, content: dict | str) -> None:
        """Replace a file of the run; UserError, with a way out, where that is not possible."""
        try:
            if isinstance(content, str):
                atomic_write_text(path, content)
            else:
                write_json(path, content)
        except OSError as error:
            way_out = f"Make room or fix the permissions; {RESUMES}"
            raise UserError(f"Cannot write {path} ({error.strerror}). {way_out}") from error


class Heartbeat:
    """Signs of life of a running run in status.json, at most one in ten seconds: each write takes about 10 ms."""

    SECONDS = 10.0

    def __init__(self, directory: RunDirectory):
        self.directory, self.written = directory, -math.inf

    def beat(self, **fields) -> None:
        if time.monotonic() - self.written >= self.SECONDS:
            self.directory.write_status("running", **fields)
            self.written = time.monotonic()


def readable(file: Path, say: Callable[[str], object] | None = None) -> dict:
    """The content of a JSON file that the run can write again; {} if missing, or damaged (a line to `say`)."""
    try:
        return read_json(file) or {}
    except UserError as error:
        if say:
            say(f"{error} This run writes it again.")
        return {}


def _require_file(path: Path) -> None:
    """SetupError for a path that exists, but that a run cannot read or replace."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:  # for example a link that leads to itself
        raise SetupError(f"{path} cannot be used ({error.strerror}). Move it away; {RESUMES}") from None
    if not is_file:
        raise SetupError(f"{path} is not a file, but a folder or the like. Move it away; {RESUMES}")
    if not os.access(path, os.R_OK):
        raise SetupError(f"{path} may not be read. Fix its permissions; {RESUMES}")


def process_exists(pid) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(pid, 0)  # signal 0 has no effect on the process
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Runs an action in a forked child, which costs 40 ms where a new process would import torch for four seconds."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (negative for a signal, None where it hung) and what it printed."""

    code: int | None
    output: str
    errors: str
    value: object = None  # what the action returned, if it can be written as JSON

    @property
    def text(self) -> str:
        return self.output + self.errors

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.text

    @property
    def refused(self) -> bool:
        """Ended by itself with an error code, and said why in lines that begin with 'error: '."""
        return self.code in (1, 2, 3) and not self.traceback and "error: " in self.text


def in_child(
    action: Callable[[], object],
    *,
    seconds: float = 60,
    disturb: Callable[[int], None] | None = None,
    folder: Path | None = None,
) -> Ended:
    """Runs the action in a child, whose exit code is what it returns if that is a number, else 0.

    `disturb` gets the child's pid and runs beside it. The child is killed after `seconds`. It works in `folder`.
    """
    place = Path(tempfile.mkdtemp(prefix="fault-"))
    for name in ("out", "err"):
        (place / name).touch()  # before a kill that comes at once
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _be_the_child(action, place, folder or place)
    if disturb:
        threading.Thread(target=disturb, args=(pid,), daemon=True).start()
    code = _wait(pid, seconds)
    value = json.loads((place / "value").read_text()) if (place / "value").exists() else None
    texts = ((place / name).read_text(errors="replace") for name in ("out", "err"))
    ended = Ended(code, *texts, value)
    shutil.rmtree(place, ignore_errors=True)
    return ended


def _be_the_child(action: Callable[[], object], place: Path, folder: Path) -> None:
    """Never returns: the child must not go on as a second copy of its parent."""
    code = 99
    try:
        os.setpgid(0, 0)  # its own children end with it
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: two would be waited for without end
        warnings.simplefilter("default")  # a test makes them errors
        os.chdir(folder)
        for descriptor, name in ((1, "out"), (2, "err")):
            file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):  # as a process has them that has just begun
            stream = open(descriptor, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        value = action()
        code = value if isinstance(value, int) else 0
        (place / "value.tmp").write_text(json.dumps(value, default=str))
        (place / "value.tmp").rename(place / "value")  # whole, or a kill came before
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # trials close them, or put None there
                stream.flush()
        os._exit(code)


def _wait(pid: int, seconds: float) -> int | None:
    """The exit code; None where the child had to be killed because it did not end."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _end_group(pid)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    _end_group(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _end_group(pid: int) -> None:
    """Ends what the child has left behind, such as the loader processes of a killed training."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

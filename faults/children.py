"""Runs an action in a forked child, which costs 40 ms where a new process would import torch for four seconds; and a
program in a process of its own, for faults that come while it starts."""

import contextlib
import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.helpers.command_line import REPOSITORY

COUNTED: Counter = Counter()  # commands of this process: forked, started


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
    COUNTED["forked"] += 1
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


def in_process(
    program: str,
    *arguments: str,
    folder: Path,
    seconds: float = 120,
    disturb: Callable[[int], None] | None = None,
    prepare: Callable[[], None] | None = None,
    **environment: str,
) -> Ended:
    """Starts a program of the repository as a shell does. `prepare` runs in the new process before Python starts."""
    COUNTED["started"] += 1
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / f"{program}.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        env=os.environ | environment,
        start_new_session=True,
        preexec_fn=prepare,
    )
    if disturb:
        threading.Thread(target=disturb, args=(process.pid,), daemon=True).start()
    try:
        output, errors = process.communicate(timeout=seconds)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end_group(process.pid)
    if code is None:
        output, errors = process.communicate()
    return Ended(code, output, errors)


def executed(program: str, *arguments: str) -> int:
    """A program of the repository in this process, as the command line runs it; its exit code."""
    limit_memory()
    sys.argv = [str(REPOSITORY / f"{program}.py"), *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def limit_memory(size: float = 24) -> None:
    """To so many GiB of addresses: reading a file with larger holes is an error then, not the end of the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (int(size * 2**30), int(size * 2**30)))


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
            errors = "backslashreplace" if name == "stderr" else "strict"
            stream = open(descriptor, "w", encoding="utf-8", errors=errors, closefd=False, buffering=1)  # noqa: SIM115
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

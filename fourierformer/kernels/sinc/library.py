"""Loading of the compiled CPU kernel: built once with the machine's C++ compiler, then read from a cache.

`make setup` builds it ahead of time (`build_now`). The name of the cached file depends on the source, the compiler, the
machine's binary interface and the processor's vector instructions, so that machines can share one home directory.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from fourierformer.files import file_sha256
from fourierformer.printing import echo

log = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("native")
COMPILERS = ("c++", "g++", "clang++")
# No fast-math: NaN has to stay NaN. The two "no-" drop error flags and handlers that nothing reads.
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math"]
# torch's name for the processor's vector instructions (ATEN_CPU_CAPABILITY lowers it) -> compiler flags; none otherwise
VECTORS = {
    "AVX2": ["-mavx2", "-mfma"],
    "AVX512": ["-mavx2", "-mfma", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"],
}
PATIENCE = 300  # seconds for the compiler, and for another process that is building


class Unavailable(Exception):
    """There is no compiled kernel here; the text is the reason and a remedy."""


@functools.cache
def load() -> ctypes.CDLL:
    """The library, or Unavailable. Builds it where needed, which takes about ten seconds and is reported on stderr."""
    if os.name != "posix":
        raise Unavailable(f"it is built on Linux and macOS only, not on {platform.system()}")
    compiler = find_compiler()
    name = library_name(compiler)
    folders = cache_folders()
    for folder in filter(_trusted, folders):
        # without a compiler, a library that any compiler made for this machine
        for path in [folder / name] if compiler else sorted(folder.glob(name)):
            if library := _open(path):
                return library
    if compiler is None:
        raise Unavailable(
            f"no C++ compiler found ({', '.join(COMPILERS)}): install one, for example with 'apt install g++' or "
            "'conda install cxx-compiler'"
        )
    for folder in folders:
        if _writable(folder):
            return _build_once(folder / name, compiler)
    raise Unavailable(f"no folder for it can be written: {', '.join(map(str, folders))} (set XDG_CACHE_HOME)")


def why_unavailable() -> str | None:
    """The reason why `load` fails; None where it works."""
    return _obstacle()


# torch.compiler.assume_constant_result sets this too, but imports the compiler: two seconds in every process.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _obstacle() -> str | None:
    try:
        load()
    except Unavailable as reason:
        return str(reason)
    return None


def find_compiler() -> str | None:
    """$CXX where it is a program, else the first of COMPILERS on the path."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX") or "c++", *COMPILERS])), None)


def cache_folders() -> list[Path]:
    """The user's cache, then a folder of the user's own among the temporary files, in case the first is read-only."""
    folders = []
    with contextlib.suppress(RuntimeError):  # a user without a home
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folders.append(Path(home) / "fourierformer")
    with contextlib.suppress(FileNotFoundError):  # a read-only system may have no folder for temporary files
        folders.append(Path(tempfile.gettempdir()) / f"fourierformer-{os.getuid()}")
    return folders


def library_name(compiler: str | None) -> str:
    """sinc-SOURCE-MACHINE-COMPILER.so"""
    sources = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        sources.update(path.name.encode() + path.read_bytes())
    machine = [platform.machine(), *platform.libc_ver(), vector_instructions(), sys.platform, str(FLAGS)]
    parts = [sources.hexdigest(), _digest(machine), "*"]
    if compiler:  # path, size and date, which differ between versions and are faster than a run with --version
        path = Path(compiler).resolve()
        parts[-1] = _digest([str(path), str(path.stat().st_size), str(path.stat().st_mtime_ns)])
    return f"sinc-{'-'.join(part[:12] for part in parts)}.so"


def vector_instructions() -> str:
    return torch.backends.cpu.get_cpu_capability()


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _trusted(path: Path) -> bool:
    """Whether a folder or file, and a link to it, belongs to this user (or root) and others cannot write it: code is
    loaded from no other."""
    try:
        facts, link = path.stat(), path.lstat()
    except OSError:
        return False
    return {facts.st_uid, link.st_uid} <= {os.getuid(), 0} and not facts.st_mode & 0o022


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return _trusted(folder)
    except OSError:
        return False


def _open(path: Path) -> ctypes.CDLL | None:
    """Load a file that is ours and whose checksum is right, else None: loading half a file may end the process."""
    try:
        if not _trusted(path):  # it may have been planted while others could write the folder
            return None
        return ctypes.CDLL(str(path)) if path.with_suffix(".sha256").read_text() == file_sha256(path) else None
    except (OSError, UnicodeDecodeError):
        return None


def _build_once(path: Path, compiler: str) -> ctypes.CDLL:
    """Build and load the library. Of several processes at once, one builds and the others wait."""
    lock = FileLock(path.with_suffix(".lock"), timeout=PATIENCE)
    try:
        with lock:
            return _open(path) or _build(path, compiler)
    except Timeout:
        raise Unavailable(
            f"another process has been building it for {PATIENCE} s, wait for it or end it ({lock.lock_file})"
        ) from None
    except NotImplementedError:  # of some versions of filelock
        raise Unavailable(f"{path.parent} is on a file system without locks (set XDG_CACHE_HOME)") from None
    except OSError as error:
        raise Unavailable(f"it cannot be written to {path.parent}: {error.strerror or error}") from None


def _build(path: Path, compiler: str) -> ctypes.CDLL:
    echo(f"building the CPU kernel of Fourier attention, once: {compiler}, into {path.parent}", file=sys.stderr)
    started, vectors = time.perf_counter(), VECTORS.get(vector_instructions(), [])
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as folder:
        built = Path(folder) / path.name
        problem = _run([compiler, *FLAGS, *vectors, str(SOURCES / "sinc.cpp"), "-o", str(built)])
        if problem or not built.exists():
            raise Unavailable(f"the compiler {compiler} failed: {problem or 'it wrote no library'}")
        built.chmod(0o755)  # under another umask others could write it
        built.with_suffix(".sha256").write_text(file_sha256(built))
        built.replace(path)
        built.with_suffix(".sha256").replace(path.with_suffix(".sha256"))
    if library := _open(path):
        log.info("built the CPU kernel in %.1f s: %s", time.perf_counter() - started, path)
        return library
    raise Unavailable(f"the library built by {compiler} cannot be loaded ({path})")


def _run(command: list[str]) -> str | None:
    """None if the command succeeds, else its first line about an error."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except OSError as error:
        return f"{error.strerror or error}"
    except subprocess.TimeoutExpired:
        return f"it took longer than {PATIENCE} s"
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
    return next((line for line in lines if "error" in line), lines[0])[:300]


def openmp_parallel() -> int | None:
    """Address of GOMP_parallel in the OpenMP of torch, so that the kernel runs on torch's threads."""
    libraries = [None, *map(str, sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*")))]
    for library in libraries:
        try:
            return ctypes.cast(ctypes.CDLL(library).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def build_now() -> None:
    """Build the library where needed, and print its path, or the reason why there is none."""
    try:
        echo(load()._name)
    except Unavailable as reason:
        echo(f"no compiled CPU kernel: {reason}. Fourier attention works without it, slower.")

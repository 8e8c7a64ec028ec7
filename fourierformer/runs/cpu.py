"""Settings of a process for computing on a CPU: how its threads wait, and whether it keeps freed memory."""

import ctypes
import os


def let_threads_sleep() -> None:
    """Make waiting threads sleep after 3,000 spins instead of GNU OpenMP's 300,000, unless the user has set it.

    On a busy machine a spinning thread occupies the core of the thread that it waits for, at each of the hundreds of
    barriers in a step. OpenMP reads the setting when it is loaded: call this before importing torch. Milliseconds per
    training step of the quick start on two cores:

                                                    idle machine    beside two busy programs
        two threads, by default                     44              207
        two threads, this setting                   52              87
        two threads, OMP_WAIT_POLICY=passive        74              170
        one thread                                  69              129
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for later use, as torch does on a GPU; other C libraries are not changed.

    By default glibc returns large blocks to the kernel and gets them back page by page: a fifth of the time of a small
    training step. M_TRIM_THRESHOLD alone is slower: it also fixes the size above which a block comes from the kernel,
    at 128 KiB.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(-4, 0)  # M_MMAP_MAX: no block comes from the kernel directly
        library.mallopt(-1, -1)  # M_TRIM_THRESHOLD: no memory is returned


def return_freed_memory() -> None:
    """Make glibc return freed memory to the kernel now, also after `keep_freed_memory`."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.malloc_trim(0)

"""What a process is told about the CPU it computes on: how its threads wait, and what becomes of freed memory."""

import ctypes
import os


def let_threads_sleep() -> None:
    """Threads that wait for each other fall asleep after 3,000 looks instead of 300,000: on a busy machine a thread
    that keeps looking holds the core that the other needs, at each of the hundreds of meetings in a step.

    Two threads on two cores, a training step of the quick start in milliseconds, idle and beside two busy programs:
    44 and 207 as it was, 52 and 87 so; 74 and 170 where they sleep at once (OMP_WAIT_POLICY=passive). One thread: 69
    and 129. GNU's OpenMP reads this when it is loaded, so before torch is imported. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def keep_freed_memory() -> None:
    """In the C library, as torch does on a GPU. glibc gives large blocks back to the kernel, which hands them out anew
    page by page: a fifth of the time of a small training step. Other C libraries are left as they are.

    Without the first, the second would be worse than nothing: it also fixes the size above which a block comes from the
    kernel, at 128 KiB.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(-4, 0)  # M_MMAP_MAX: no block comes from the kernel directly
        library.mallopt(-1, -1)  # M_TRIM_THRESHOLD: nothing goes back

"""What a process is told about the CPU it computes on: how its threads wait, and what becomes of freed memory."""

import ctypes
import os


def let_threads_sleep() -> None:
    """Threads that wait for each other sleep instead of spinning: on a busy machine a spinning one keeps the core that
    the other needs, for milliseconds at each of the hundreds of meetings in a step.

    OpenMP reads this when it is loaded, so it must be said before torch is imported. What the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


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

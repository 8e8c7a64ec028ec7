"""Errors that a user can act on. Each is printed as one message without a traceback, and sets the exit code."""

import difflib
import math
import os
import re
import signal

LARGEST_COUNT = 2**24  # of tokens, channels, rows: the product of two of them, in bytes, is a 64-bit number


class UserError(Exception):
    """An error that the user can fix; the message has the reason and the way out."""

    exit_code = 1
    already_reported = False  # True if another process has printed it (processes.py)
    ends_sweep = False  # True if no other job of a sweep can do better


class SetupError(UserError):
    """The config, the data or the environment is wrong; nothing was trained."""

    exit_code = 2


class Diverged(UserError):
    """Too many training steps in a row had non-finite numbers."""

    exit_code = 3


class Interrupted(BaseException):
    """A signal requested a stop. A BaseException, so that a loop over jobs does not take it for a failed job."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)  # the only argument, so that it survives pickling between processes
        self.signal_number = signal_number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}"


def interruption_behind(error: BaseException | None) -> Interrupted | None:
    """The signal behind an error: Hydra and OmegaConf wrap exceptions raised during their work."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


def one_line(error: BaseException) -> str:
    """An error's message with blanks for line breaks; the name of its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def short(error: BaseException) -> str:
    """'ValueError: the first line of its message', for errors of many kinds."""
    return f"{type(error).__name__}: {first_line(error) if str(error).strip() else 'no message'}"


def os_error_text(error: OSError) -> str:
    """'FILE: the reason', with a long name cut."""
    name = str(error.filename or "the disk")
    return f"{name if len(name) < 500 else name[:100] + '...'}: {error.strerror or error}"


def out_of_memory_text(error: Exception) -> str | None:
    """The message for an out-of-memory error, else None. torch, not loaded here, has a class for it on GPUs only."""
    text = one_line(error)
    if isinstance(error, ImportError | OSError) and re.search("failed to map segment|[Cc]annot allocate memory", text):
        return f"there is not enough memory to load torch ({text[:100]}): raise the limit (ulimit -v, or the job's)"
    on_cpu = re.search(r"can't allocate memory|not enough memory|Storage size calculation overflowed", text)
    if not (isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or on_cpu):
        return None
    amount = re.search(r"tried to allocate [\d.]+ \w+", text, flags=re.IGNORECASE)
    reason = amount[0].lower() if amount else text[:100]
    return (
        f"there is not enough memory ({reason}). Use a smaller trainer.micro_batch_size, which computes a step in "
        "more pieces (in evaluations evaluation.tokens_per_forward or images_per_forward), or a smaller model"
    )


def check_range(key: str, value: float | None, low: float, below: float = math.inf, *, above_low: bool = False) -> None:
    """SetupError unless low <= value < below, or low < value with `above_low`. None means "not set" and is accepted."""
    if value is None or (low <= value < below and not (above_low and value == low)):
        return  # NaN fails every comparison
    upper = "" if below == math.inf else f" and less than {_plain(below)}"
    raise SetupError(f"{key}={value}: must be {'more than' if above_low else 'at least'} {_plain(low)}{upper}")


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def check_name(key: str, name: str) -> None:
    """SetupError unless this can be the name of a folder, without leaving its parent."""
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        valid = "without '/', without a leading dot and without control characters"
        raise SetupError(f"{key}={name!r} is the name of a folder: choose one {valid}")


def check_path(key: str, path: str | None) -> None:
    """SetupError for an impossible path. None means "not set" and is accepted."""
    if path is None:
        return
    if not path or "\0" in path:
        raise SetupError(f"{key}={path!r} is no path: choose a folder")
    if path.startswith("~") and os.path.expanduser(path) == path:
        raise SetupError(f"{key}={path}: there is no user of that name; write the whole path")


def did_you_mean(word: str, options, prefix: str = "") -> str:
    """The end of a message about an unknown word: ' (did you mean x?)' with one or two nearest options, else all."""
    options = sorted(map(str, options))
    near = difflib.get_close_matches(word, options, n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, option, word).ratio() for option in near]
    if near:
        named = [f"'{prefix}{o}'" for o, ratio in zip(near, ratios, strict=True) if ratio > ratios[0] - 0.15]
        return f" (did you mean {' or '.join(named)}?)"
    return f" (valid: {', '.join(prefix + option for option in options)})" if options else ""

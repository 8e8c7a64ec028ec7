"""Errors a user can act on. Each prints as one message without a traceback and ends the process with its exit code."""

import difflib
import math
import signal


class UserError(Exception):
    """Something the user can fix; the message says what and how."""

    exit_code = 1
    already_reported = False  # set where another process has said it (training/processes.py)


class SetupError(UserError):
    """Config, data or environment is wrong: nothing was trained."""

    exit_code = 2


class Diverged(UserError):
    """Training met non-finite numbers too many times in a row."""

    exit_code = 3


class Interrupted(BaseException):
    """A signal asked the run to stop. A BaseException, so that no job loop above mistakes it for a failed job."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)  # the only argument, so that it survives pickling between processes
        self.signal_number = signal_number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}"


def check_range(key: str, value: float | None, low: float, below: float = math.inf, *, above_low: bool = False) -> None:
    """SetupError unless low <= value < below, or low < value with `above_low`. None, "not set", passes."""
    if value is None or (low <= value < below and not (above_low and value == low)):
        return  # NaN fails every comparison
    upper = "" if below == math.inf else f" and less than {below:g}"
    raise SetupError(f"{key}={value}: must be {'more than' if above_low else 'at least'} {low:g}{upper}")


def did_you_mean(word: str, options, prefix: str = "") -> str:
    """' (did you mean x?)' for the nearest option, or the options themselves when nothing is near."""
    options = sorted(map(str, options))
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if near:
        return f" (did you mean '{prefix}{near[0]}'?)"
    return f" (valid: {', '.join(prefix + option for option in options)})" if options else ""

"""Stopping on request: the first signal asks for a checkpoint, a second Ctrl-C does not wait for one.

Schedulers send SIGTERM or SIGUSR1 before they kill, people press Ctrl-C (SIGINT). Work is never cut in the middle:
the handler only sets a flag, and whatever runs for long (training, evaluation, warm-up) calls `poll()` at places
where stopping is safe.
"""

import contextlib
import os
import signal
import sys
import threading

from fourierformer.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def exit_code(signal_number: int) -> int:
    """128 + the number, as shells count; SIGUSR1 is a scheduler's early SIGTERM and ends like one."""
    return 128 + (signal.SIGINT if signal_number == signal.SIGINT else signal.SIGTERM)


class StopSignal:
    """`with StopSignal() as stop: ... stop.poll()`. Elsewhere than in the main thread, Python allows no handlers: there
    it never fires."""

    def __init__(self):
        self.signal_number: int | None = None
        self._raised = False
        self._previous: dict = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind, *exception) -> None:
        for number, handler in self._previous.items():
            # None: the handler was not installed by Python and cannot be put back by it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}
        # Came after the last poll: the work is done, but a sweep must not begin its next job as if nobody had asked.
        if kind is None and not self._raised:
            self.poll()

    def poll(self) -> None:
        """Raises Interrupted if a signal came; every time, so that nested loops all end."""
        if self.signal_number is not None:
            self._raised = True
            raise Interrupted(self.signal_number)

    def _receive(self, number: int, frame) -> None:
        if self.signal_number is None:
            self.signal_number = number
            name = signal.Signals(number).name
            _write(f"\n{name}: stopping after this micro-step, saving; press Ctrl-C again to abort at once\n")
        elif number == signal.SIGINT:
            # A live progress bar hides the cursor, and os._exit gives it no chance to bring it back.
            _write(
                "\x1b[?25h\naborted, nothing saved since the last checkpoint\n" if sys.stderr.isatty() else "aborted\n"
            )
            os._exit(exit_code(signal.SIGINT))


def _write(text: str) -> None:
    """Straight to the descriptor: print() inside a handler fails when the interrupted code was itself printing."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())

"""Stopping on request: after the first signal the run saves a checkpoint and ends, after a second Ctrl-C it ends at
once.

Schedulers send SIGTERM or SIGUSR1 before they kill, people press Ctrl-C (SIGINT), a terminal that closes sends SIGHUP.
The handler only sets a flag, and whatever runs for long (training, evaluation, warm-up) calls `poll()` where stopping
is safe. Several processes agree at each poll, so that all stop at the same one, whichever got the signal.
"""

import contextlib
import os
import signal
import sys
import threading
import time

from fourierformer.errors import Interrupted
from fourierformer.processes import Processes

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
SAME_CTRL_C = 1.0  # seconds within which a second SIGINT is the same Ctrl-C, from the terminal and from a launcher


def exit_code(signal_number: int) -> int:
    """The exit code after a signal: 128 + its number, as in shells. SIGUSR1, a scheduler's early SIGTERM, has
    SIGTERM's, as has SIGHUP."""
    return 128 + (signal.SIGINT if signal_number == signal.SIGINT else signal.SIGTERM)


def how_to_abort(number: int) -> str:
    """What to tell the user after this signal, which not everyone has sent by hand."""
    return "press Ctrl-C again to abort at once" if number == signal.SIGINT else "SIGINT (Ctrl-C) aborts at once"


def stop_signals() -> list[signal.Signals]:
    """The signals that ask to stop. Not SIGHUP where it is ignored: `nohup` does so to go on without a terminal."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class StopSignal:
    """Receives the signals that ask a run to stop: `with StopSignal() as stop: ... stop.poll()`.

    Python allows handlers in the main thread only: elsewhere poll() never raises. With several processes each must poll
    equally often, and all must stay until the end of the block."""

    def __init__(self, processes: Processes | None = None):
        self.processes = processes or Processes()
        self.signal_number: int | None = None  # of the first signal, here or, since a poll, in another process
        self._since = 0.0
        self._agreed = 0  # the number of the signal that all processes know of
        self._previous: dict = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in stop_signals()}
        return self

    def __exit__(self, kind, *exception) -> None:
        for number, handler in self._previous.items():
            # None: the handler was not installed by Python and cannot be put back by it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}
        # A signal after the last poll: the work is done, but a sweep must not begin its next job.
        if kind is None and not self._agreed:
            self.poll()

    def poll(self) -> None:
        """Raises Interrupted if a process of the run has received a signal; at every call, so that nested loops all
        end. After the first time it asks the other processes no more: then they need not poll equally often."""
        # The common answer, not signal_number: this process alone knows of a signal that came while they were asking.
        self._agreed = self._agreed or self.processes.highest(self.signal_number or 0)
        if self._agreed:
            if self.signal_number is None:
                self._begin(self._agreed)
            raise Interrupted(self._agreed)

    def _receive(self, number: int, frame) -> None:
        if self.signal_number is None:
            self._begin(number)
        elif number == signal.SIGINT and not self._same_ctrl_c():
            # A live progress bar hides the cursor, and os._exit does not let it show the cursor again.
            self._say(
                "\x1b[?25h\naborted, nothing saved since the last checkpoint\n" if sys.stderr.isatty() else "aborted\n"
            )
            os._exit(exit_code(signal.SIGINT))

    def _begin(self, number: int) -> None:
        self.signal_number, self._since = number, time.monotonic()
        # torchrun does not pass a second Ctrl-C on
        again = f"; {how_to_abort(number)}" if self.processes.world == 1 else ""
        self._say(f"\n{signal.Signals(number).name}: stopping after this micro-step, saving{again}\n")

    def _same_ctrl_c(self) -> bool:
        shared = self.processes.world > 1 and self.signal_number == signal.SIGINT
        return shared and time.monotonic() - self._since < SAME_CTRL_C

    def _say(self, text: str) -> None:
        """Writes to stderr, in the first process only."""
        if self.processes.first:
            _write(text)


def _write(text: str) -> None:
    """Writes to stderr's descriptor: print() inside a handler fails when the interrupted code was itself printing."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())

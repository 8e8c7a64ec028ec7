"""Stop a run on a signal: after the first one it saves a checkpoint and ends, after a second Ctrl-C it ends at once.

Schedulers send SIGTERM or SIGUSR1 before they kill, people press Ctrl-C (SIGINT), a closing terminal sends SIGHUP. The
handler only sets a flag; long work (training, evaluation, warm-up) calls `poll()` where stopping is safe. Several
processes agree at each poll, so that all stop at the same one, whichever received the signal.

Before a run, while modules are imported and its config is read, a signal is only noted, and the process ends at the
next `stop_if_noted()`: an exception inside an import would leave half a module, or be swallowed there.
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
SAME_CTRL_C = 1.0  # seconds within which a second SIGINT is the same Ctrl-C, sent by the terminal and by a launcher


def exit_code(signal_number: int) -> int:
    """The exit code after a signal: 128 + its number, as in shells. SIGUSR1 and SIGHUP count as SIGTERM."""
    return 128 + (signal.SIGINT if signal_number == signal.SIGINT else signal.SIGTERM)


STOPPED = {exit_code(number) for number in SIGNALS}  # exit codes


def how_to_abort(number: int) -> str:
    """The hint after a signal, which a scheduler may have sent."""
    return "press Ctrl-C again to abort at once" if number == signal.SIGINT else "SIGINT (Ctrl-C) aborts at once"


def stop_signals() -> list[signal.Signals]:
    """The signals that request a stop; not SIGHUP where it is ignored, as under `nohup`."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


_noted: int | None = None  # the first signal that no run has received


def note_signals() -> None:
    """From now on only note the signals that request a stop. For the beginning of a program, before its imports."""
    for number in stop_signals():
        signal.signal(number, note)


def note(number: int, frame=None, doing: str = "stopping") -> None:
    """Handle a signal outside of a run. A second Ctrl-C ends the process at once."""
    global _noted
    if _noted is None:
        _noted = number
        _say(f"\n{signal.Signals(number).name}: {doing}; {how_to_abort(number)}\n")
    elif number == signal.SIGINT:
        os._exit(exit_code(signal.SIGINT))


def noted_signal() -> int | None:
    """The signal that was noted, or None."""
    return _noted


def forget_signal() -> None:
    """Forget the noted signal, at the end of a program."""
    global _noted
    _noted = None


def stop_if_noted() -> None:
    """Raise Interrupted if a signal was noted."""
    if _noted is not None:
        raise Interrupted(_noted)


def _say(text: str) -> None:
    """Write to stderr's descriptor: print() in a handler fails if it interrupted a print()."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


class StopSignal:
    """Receive the signals that stop a run, and a noted one: `with StopSignal() as stop: ... stop.poll()`.

    Python allows handlers in the main thread only: elsewhere poll() never raises. With several processes each must poll
    equally often, and all must stay until the end of the block."""

    def __init__(self, processes: Processes | None = None):
        self.processes = processes or Processes()
        self.signal_number: int | None = None  # of the first signal, here or, since a poll, in another process
        self._since = 0.0
        self._agreed = 0  # the signal number that all processes have exchanged
        self._previous: dict = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in stop_signals()}
            self.signal_number = _noted
        return self

    def __exit__(self, kind, *exception) -> None:
        for number, handler in self._previous.items():
            # None: a handler not installed by Python, which cannot restore it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}
        # A signal after the last poll: the work is done, but a sweep must not begin its next job.
        if kind is None and not self._agreed:
            self.poll()

    def poll(self) -> None:
        """Raise Interrupted if a process of the run has received a signal; at every call, so that nested loops all end.
        After the first time nothing is exchanged any more, and processes need not poll equally often."""
        # the common number, not signal_number: a signal during the exchange is known to this process alone
        self._agreed = self._agreed or self.processes.highest(self.signal_number or 0)
        if self._agreed:
            if self.signal_number is None:
                self._begin(self._agreed)
            raise Interrupted(self._agreed)

    def _receive(self, number: int, frame) -> None:
        shared = self.processes.world > 1 and self.signal_number == signal.SIGINT
        if self.signal_number is None:
            self._begin(number)
        elif number == signal.SIGINT and not (shared and time.monotonic() - self._since < SAME_CTRL_C):
            # show the cursor, which a live progress bar hides and cannot restore after os._exit
            on_terminal = "\x1b[?25h\naborted, nothing saved since the last checkpoint\n"
            self._say(on_terminal if sys.stderr.isatty() else "aborted\n")
            os._exit(exit_code(signal.SIGINT))

    def _begin(self, number: int) -> None:
        self.signal_number, self._since = number, time.monotonic()
        # torchrun does not pass a second Ctrl-C on
        again = f"; {how_to_abort(number)}" if self.processes.world == 1 else ""
        self._say(f"\n{signal.Signals(number).name}: stopping after this micro-step, saving{again}\n")

    def _say(self, text: str) -> None:
        if self.processes.first:
            _say(text)

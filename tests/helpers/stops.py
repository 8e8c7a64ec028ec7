"""A stop that comes at a chosen moment."""

import signal

from fourierformer.errors import Interrupted


class StopAfter:
    """Replaces StopSignal: a signal has come at the n-th poll, with None never."""

    def __init__(self, polls: int | None):
        self.left = polls

    def poll(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Interrupted(signal.SIGTERM)

"""Asks whether a host can be reached, within a given time."""

import contextlib
import socket
import threading


def reachable(host: str, port: int, seconds: float) -> bool:
    """Whether the host accepts a connection within so many seconds.

    Connects in a thread, because looking up a name has no time limit of its own.
    """
    answered = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
            answered.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()

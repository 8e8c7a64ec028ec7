"""Replacements of socket.create_connection: networks without an answer."""

import contextlib
import socket
import threading


def refused(*_, **__):
    raise ConnectionRefusedError("no network here")


@contextlib.contextmanager
def silent_network(monkeypatch):
    """A network that does not reply; the event is set once somebody has tried to connect, and waits since then."""
    tried, end = threading.Event(), threading.Event()

    def connect(*_, **__):
        tried.set()
        end.wait()
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    try:
        yield tried
    finally:
        end.set()

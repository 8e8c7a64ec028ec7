"""Replacements of socket.create_connection: networks without an answer."""

import time


def refused(*_, **__):
    raise ConnectionRefusedError("no network here")


def silent(*_, **__):
    """A network without any reply for half a minute."""
    time.sleep(30)
    raise TimeoutError

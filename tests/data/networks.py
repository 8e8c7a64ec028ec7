"""Networks that are not there, in place of socket.create_connection."""

import time


def refused(*_, **__):
    raise ConnectionRefusedError("no network here")


def silent(*_, **__):
    """A network that swallows everything: no answer within half a minute."""
    time.sleep(30)
    raise TimeoutError

"""Check whether a host can be reached, within a given time and through the proxy of the environment."""

import contextlib
import socket
import threading
import urllib.request
from urllib.parse import SplitResult, urlsplit

from fourierformer.errors import SetupError


def reachable(host: str, port: int, seconds: float) -> bool:
    """Whether the host accepts a connection in this time. In a thread, because a name look-up has no time limit."""
    answered = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=seconds):
            answered.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def first_hop(url: SplitResult) -> tuple[str, int]:
    """Host and port to connect to: the proxy's if there is one, because the host itself then does not answer."""
    proxies, host = urllib.request.getproxies(), url.hostname or ""
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(host):
        try:
            url = urlsplit(proxy if "//" in proxy else f"//{proxy}")  # curl, urllib and httpx take HOST:PORT, too
            if (url.port is None and not url.hostname) or "@" in f"{url.path}{url.query}{url.fragment}":
                raise ValueError
        except ValueError:  # its text may have a part of a password
            way_out = "write HTTPS_PROXY=http://user:password@host:port, with %23 for # in a password"
            raise SetupError(f"the proxy in the environment is no address: {way_out}") from None
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)

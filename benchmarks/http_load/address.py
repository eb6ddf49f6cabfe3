"""Where load goes: an address of this machine and no other."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from seatrial.errors import UsageError

EXAMPLE = "http://127.0.0.1:8000"


class Address(NamedTuple):
    """A server on loopback; ``host`` is numeric."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def loopback(url: str) -> Address:
    """The address of a URL. Raises UsageError for one that is no http, or leaves this machine."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise UsageError(f"{url} is no address: {error}", run=EXAMPLE) from error
    if parts.scheme != "http" or not host:
        raise UsageError(f"{url} is no http address", run=EXAMPLE)
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError as error:
        raise UsageError(f"{host} is not known: {error}", run=EXAMPLE) from error
    outside = [each for each in found if not ipaddress.ip_address(each.partition("%")[0]).is_loopback]
    if outside:
        raise UsageError(
            f"{host}{f' ({outside[0]})' if outside[0] != host else ''} is not this machine: load goes to loopback only",
            run=f"{EXAMPLE}, on the machine that serves",
        )
    return Address("127.0.0.1" if "127.0.0.1" in found else found[0], port)

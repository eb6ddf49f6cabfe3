"""Addresses to listen on, as people type them: ``9400``, ``:9400``, ``127.0.0.1:9400``, ``[::1]:9400``."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from seatrial.errors import UsageError, fallback


def parse_address(text: str, command: str, port: int) -> tuple[str, int]:
    """Return (host, port), of a port alone the loopback's. Raises UsageError with ``command`` and ``port`` to run."""
    host, _, number = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not re.fullmatch("[0-9]{1,5}", number) or int(number) > 65535 or not _can_be_host(host):
        run = f"seatrial {command} --listen 127.0.0.1:{port}"
        raise UsageError(f'"{text[:80]}" is not an address: expected HOST:PORT', run=run)
    return host or "127.0.0.1", int(number)


@fallback(False, on=UnicodeError)
def _can_be_host(text: str) -> bool:
    return text.isprintable() and " " not in text and len(text.encode("idna")) < 256


@fallback(False, on=ValueError)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    return ipaddress.ip_address(host).is_loopback


def names_this_machine(host_header: str) -> bool:
    """Return True if a request's Host header is a loopback name, which a server on the loopback address requires.

    Else a page of another site that points its own name at 127.0.0.1 could read the answers in a visitor's browser.
    """
    name, _, port = host_header.rpartition(":")
    if not port.isdecimal():
        name = host_header
    return is_loopback(name.removeprefix("[").removesuffix("]"))


def url(host: str, port: int) -> str:
    """Return the URL to open in a browser: this machine's name where it listens on every address."""
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def taken(address: str, port: int) -> OSError | None:
    """Return the error of listening there; None if the port is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections do not count
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return None


def cannot_listen(verb: str, host: str, port: int, error: OSError) -> UsageError:
    """Return the error for an address that cannot be bound, with another port or address to use."""
    if error.errno == errno.EADDRINUSE:
        other = f"{host}:{port + 1 if port < 65535 else 1024}"
    elif error.errno == errno.EACCES:
        other = f"{host}:{port + 8000}"  # below 1024 is root's
    else:
        other = f"127.0.0.1:{port}   # or 0.0.0.0:{port}, all addresses of this machine"
    return UsageError(f"Cannot listen on {host}:{port}: {error.strerror}", run=f"seatrial {verb} --listen {other}")

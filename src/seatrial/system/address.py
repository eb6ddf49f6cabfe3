"""Addresses to listen on, as people type them: ``9400``, ``:9400``, ``127.0.0.1:9400``, ``[::1]:9400``."""

from __future__ import annotations

import ipaddress

from seatrial.errors import UsageError


def parse_address(text: str, command: str, port: int) -> tuple[str, int]:
    """(host, port). A port alone is on the loopback address.

    Args:
        command, port: for the command to run next.

    Raises:
        UsageError: it is none.
    """
    host, colon, number = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not number.isdecimal() or not 0 <= int(number) <= 65535 or (colon and " " in host):
        raise UsageError(
            f'"{text}" is no address: expected HOST:PORT', run=f"seatrial {command} --listen 127.0.0.1:{port}"
        )
    return host or "127.0.0.1", int(number)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

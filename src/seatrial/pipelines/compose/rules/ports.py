"""Published ports: twice in the file, or taken on this machine."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress

from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.remark import Remark
from seatrial.pipelines.compose.service import Service


def _twice(file: ComposeFile) -> Iterator[Remark]:
    first: dict[tuple[str, int, str], tuple[str, int]] = {}
    proposed = _all_published(file)
    for name, service in file.services.items():
        for address, port, protocol, target in published(service):
            others = [
                (user, line)
                for (other, number, kind), (user, line) in first.items()
                if (number, kind) == (port, protocol) and (other == address or "" in (other, address))
            ]
            place = file.place(name, "ports", str(port))
            if others:
                user, line = others[0]
                where = "twice" if user == name else f"as {user} does in line {line}"
                message = f"{name} publishes port {port} {where}: only one can have it"
                yield Remark(place, "port-twice", "error", message, f'"{_free(port, proposed)}:{target}"')
            first.setdefault((address, port, protocol), (name, place.line))


def _all_published(file: ComposeFile) -> set[int]:
    return {port for service in file.services.values() for _, port, _, _ in published(service)}


def _free(port: int, taken: set[int]) -> int:
    """The next one that no service has and none was told to take; it counts as taken then."""
    free = next((number for number in range(port + 1, 65536) if number not in taken), port)
    taken.add(free)
    return free


def _taken(file: ComposeFile) -> Iterator[Remark]:
    proposed = _all_published(file)
    for name, service in file.services.items():
        for address, port, protocol, target in published(service):
            if protocol == "tcp" and is_taken(address, port):
                yield Remark(
                    file.place(name, "ports", str(port)),
                    "port-taken",
                    "warning",
                    f"{name} publishes port {port}, which another program on this machine has",
                    f'"{_free(port, proposed)}:{target}"   # or see who has it: sudo ss -ltnp sport = :{port}',
                )


def published(service: Service) -> list[tuple[str, int, str, int]]:
    """(address or "", port of the host, protocol, port of the container); ranges and ports left open are Compose's.

    By the host's port: Compose prints them in another order each time.
    """
    found = []
    for each in service.ports:
        text = str(each.get("published") or "")
        if text.isdigit() and 0 < int(text) < 65536:
            address = str(each.get("host_ip") or "")
            address = "" if address in ("0.0.0.0", "::") else address
            found.append((address, int(text), str(each.get("protocol")), each["target"]))
    return sorted(found, key=lambda port: port[1])


def is_taken(address: str, port: int) -> bool:
    """Whether a program listens there."""
    with suppress(OSError, ValueError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address or "0.0.0.0", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


RULES = (_twice, _taken)

"""One process's share of the load: its connections send the next request when the last one is answered."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from http_load.address import Address
from http_load.wire import answered

CONNECT_TIMEOUT_S = 5.0
#: Connections that break are opened again; after so many in one round the server is not there.
MOST_BREAKS = 1000


@dataclass
class Share:
    """What one process counted.

    Attributes:
        latencies_s: of the requests answered with 2xx.
        statuses: of all answers. broken: connections that ended before the answer. cpu_s: of this process.
    """

    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0
    cpu_s: float = 0.0


class _Connection:
    __slots__ = ("data", "next", "sent_s", "sock", "unsent")

    def __init__(self, sock: socket.socket, first: int) -> None:
        self.sock, self.next, self.sent_s, self.data, self.unsent = sock, first, 0.0, b"", b""


def drive(
    address: Address, requests: Sequence[bytes], connections: int, begin_s: float, warm_s: float, seconds: float
) -> Share:
    """Load for ``warm_s`` uncounted and ``seconds`` counted, from ``begin_s`` on (time.monotonic)."""
    share, selector = Share(), selectors.DefaultSelector()
    here: list[_Connection] = []
    try:
        for number in range(connections):
            here.append(_Connection(_connected(address), number * 7919))
            selector.register(here[-1].sock, selectors.EVENT_READ, here[-1])
        time.sleep(max(0.0, begin_s - time.monotonic()))
        count_s, end_s = begin_s + warm_s, begin_s + warm_s + seconds
        for connection in here:
            _send(selector, connection, requests)
        cpu_s: float | None = None
        while (now_s := time.monotonic()) < end_s and share.broken < MOST_BREAKS:
            if cpu_s is None and now_s >= count_s:
                cpu_s = _cpu_s()
            for key, events in selector.select(min(0.05, end_s - now_s)):
                _turn(selector, key.data, events, share, requests, address, count_s)
        share.cpu_s = _cpu_s() - (cpu_s if cpu_s is not None else _cpu_s())
    finally:
        for connection in here:
            connection.sock.close()
        selector.close()
    return share


def _turn(
    selector: selectors.BaseSelector,
    connection: _Connection,
    events: int,
    share: Share,
    requests: Sequence[bytes],
    address: Address,
    count_s: float,
) -> None:
    if connection.unsent and events & selectors.EVENT_WRITE:
        _send(selector, connection, requests, again=True)
    if not events & selectors.EVENT_READ:
        return
    try:
        data = connection.sock.recv(65536)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    whole = None
    if data:
        connection.data = connection.data + data if connection.data else data
        try:
            whole = answered(connection.data)
        except ValueError:
            data = b""
    if not data:
        share.broken += 1
        _open_again(selector, connection, address)
        _send(selector, connection, requests)
    elif whole is not None and len(connection.data) >= whole[1]:
        now_s = time.monotonic()
        if connection.sent_s >= count_s:
            share.statuses[whole[0]] += 1
            if 200 <= whole[0] < 300:
                share.latencies_s.append(now_s - connection.sent_s)
        connection.data = b""
        _send(selector, connection, requests)


def _send(
    selector: selectors.BaseSelector, connection: _Connection, requests: Sequence[bytes], *, again: bool = False
) -> None:
    if again:
        data = connection.unsent
    else:
        data = requests[connection.next % len(requests)]
        connection.next += 1
        connection.sent_s = time.monotonic()
    try:
        sent = connection.sock.send(data)
    except BlockingIOError:
        sent = 0
    except OSError:  # gone: reading says so
        return
    left = data[sent:]
    if bool(left) != bool(connection.unsent):
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
        selector.modify(connection.sock, events, connection)
    connection.unsent = left


def _connected(address: Address) -> socket.socket:
    sock = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _open_again(selector: selectors.BaseSelector, connection: _Connection, address: Address) -> None:
    selector.unregister(connection.sock)
    connection.sock.close()
    connection.sock, connection.data, connection.unsent = _connected(address), b"", b""
    selector.register(connection.sock, selectors.EVENT_READ, connection)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

"""Bind the port for every front, close it without losing a connection, and pass stop signals to every process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from seatrial.serve.errors import ServeError

STOPPING = (signal.SIGTERM, signal.SIGINT)
_READ_BYTES = 4096
#: Source: asm-generic/socket.h.
_SO_ATTACH_FILTER = 26
_BACKLOG = 4096
#: (code, jump if true, jump if not, operand): load the byte of TCP's flags, drop where SYN is set, else keep all of it.
#: Source: socket(7), SO_ATTACH_FILTER; linux/bpf_common.h; RFC 9293, 3.1: flags in byte 13, SYN is 2.
_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def listen(host: str, port: int, fronts: int) -> list[socket.socket]:
    """Return a listening socket for each front, all on one port. Raises ServeError if the port is taken.

    The kernel deals connections out to them (SO_REUSEPORT); with one, the front that wakes first would take all.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        first = _bound(family, host, port, shared=False)  # fails where another server has the port, also a shared one
        sockets = [first]
        if fronts > 1:
            port = first.getsockname()[1]
            first.close()
            sockets = [_bound(family, host, port, shared=True) for _ in range(fronts)]
        for each in sockets:
            each.listen(_BACKLOG)
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ServeError(message, fix="give another port: --port") from error
    return sockets


def _bound(family: int, host: str, port: int, *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


def refuse_new(listener: socket.socket) -> None:
    """Refuse new connections; those that are in the queue can still be accepted.

    A socket that is closed resets the connections in its queue. A filter that drops requests for a connection (SYN)
    lets the queue run empty. Everything else must pass: a connection's last ACK comes to the listener, too, and its
    client regards it as made already.
    """
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN))
    program = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(instructions))
    with suppress(OSError):  # a kernel without it: a connection of these milliseconds is reset
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


async def emptied(listener: socket.socket, patience_s: float) -> bool:
    """Wait until all that have connected are accepted; return False if some were not after so long.

    The clock alone is not enough: a process that the kernel did not run for a while closes the socket in the same turn
    in which it would have accepted.
    """
    queue, end_s = select.poll(), asyncio.get_running_loop().time() + patience_s
    queue.register(listener.fileno(), select.POLLIN)
    while queue.poll(0):
        if asyncio.get_running_loop().time() > end_s:
            return False
        await asyncio.sleep(0.005)
    return True


class StopSignals:
    """Signals that end the program, readable by every process of it, even while a batch is computed.

    Python runs a handler between two bytecodes of the main thread: a batch that is one long call delays it, and one
    that keeps Python's lock delays every other thread, too. Only the signal's number is written to the wakeup
    descriptor at once. So that descriptor is a file in memory, which each front reads for itself: a byte
    for each signal that Python code handles.

    ``descriptor``: of the file, from ``StopSignals.create``.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._read_bytes = 0
        self._stop = self._handled = False

    @classmethod
    def create(cls) -> StopSignals:
        """Make a file without a signal in it."""
        descriptor = os.memfd_create("seatrial-serve-signals")
        os.set_blocking(descriptor, False)  # signal.set_wakeup_fd requires it
        return cls(descriptor)

    def collect(self, act: Callable[[], None]) -> None:
        """Write signals to this process into the file; call ``act`` for the first, once Python handles it."""

        def handle(number: int, _: object) -> None:
            # once more: an event loop in the model's code takes the wakeup descriptor for itself
            os.write(self.descriptor, bytes((number,)))
            if not self._handled:  # a handler may interrupt itself
                self._handled = True
                act()

        signal.set_wakeup_fd(self.descriptor)
        for number in STOPPING:
            signal.signal(number, handle)
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)

    def came(self) -> bool:
        """Return True if one has ever come."""
        if not self._stop:
            numbers = os.pread(self.descriptor, _READ_BYTES, self._read_bytes)
            self._read_bytes += len(numbers)
            self._stop = any(number in numbers for number in STOPPING)
        return self._stop


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _forget() -> None:
    """Detach a process that the model's code has forked: a signal to it is not one to the program.

    It ends by SIGTERM, and not by a terminal's Ctrl-C: a request that it works on may still be answered.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _release()

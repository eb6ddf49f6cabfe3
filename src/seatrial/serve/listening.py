"""The port: bound for every front, and closed to new connections without losing one that is there."""

from __future__ import annotations

import ctypes
import socket

from seatrial.serve.errors import ServeError

#: Source: asm-generic/socket.h.
_SO_ATTACH_FILTER = 26
_BACKLOG = 4096


def listen(host: str, port: int, fronts: int) -> list[socket.socket]:
    """A listening socket for each front, all on one port. Raises ServeError when it cannot be had.

    The kernel deals connections out to sockets of a port (SO_REUSEPORT). With one socket for all, whichever front wakes
    first takes every connection that waits there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        first = _bound(family, host, port, shared=False)  # fails where another server has the port, also a shared one
        if fronts == 1:
            first.listen(_BACKLOG)
            return [first]
        port = first.getsockname()[1]
        first.close()
        sockets = [_bound(family, host, port, shared=True) for _ in range(fronts)]
        for each in sockets:
            each.listen(_BACKLOG)
    except OSError as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror}", fix="give another port: --port"
        ) from error
    return sockets


def refuse_new(listener: socket.socket) -> None:
    """From now on nobody can connect; who has connected can still be accepted.

    A socket that is closed resets what waits in its queue. A filter that drops every packet lets the queue run empty.
    Source: socket(7), SO_ATTACH_FILTER; the one instruction is BPF_RET | BPF_K, 0.
    """

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))

    instruction = Instruction(0x06, 0, 0, 0)
    program = Program(1, ctypes.pointer(instruction))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError:  # a kernel without it: a connection of these milliseconds is reset
        pass


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

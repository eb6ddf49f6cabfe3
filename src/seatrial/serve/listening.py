"""The port: bound for every front, and closed to new connections without losing one that is there."""

from __future__ import annotations

import asyncio
import ctypes
import select
import socket

from seatrial.serve.errors import ServeError

#: Source: asm-generic/socket.h.
_SO_ATTACH_FILTER = 26
_BACKLOG = 4096
#: (code, jump if true, jump if not, operand): load the byte of TCP's flags, drop where SYN is set, else keep all of it.
#: Source: socket(7), SO_ATTACH_FILTER; linux/bpf_common.h; RFC 9293, 3.1: flags in byte 13, SYN is 2.
_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


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

    A socket that is closed resets what waits in its queue. A filter that drops what asks for a connection (SYN) lets
    the queue run empty. Everything else has to pass: a connection's last ACK comes to the listener, too, and its client
    takes it for made already.
    """

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))

    instructions = (Instruction * len(_DROP_SYN))(*(Instruction(*each) for each in _DROP_SYN))
    program = Program(len(_DROP_SYN), instructions)
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError:  # a kernel without it: a connection of these milliseconds is reset
        pass


async def emptied(listener: socket.socket, most_s: float) -> bool:
    """Wait until all that have connected are accepted; False when some were not after so long.

    By the clock alone it cannot be known: a process that the kernel did not run for a while closes the socket in the
    same turn in which it would have accepted.
    """
    queue, end_s = select.poll(), asyncio.get_running_loop().time() + most_s
    queue.register(listener.fileno(), select.POLLIN)
    while queue.poll(0):
        if asyncio.get_running_loop().time() > end_s:
            return False
        await asyncio.sleep(0.005)
    return True


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

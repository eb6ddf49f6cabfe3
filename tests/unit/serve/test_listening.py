"""A port that is closed to new connections keeps those that are there."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time

import pytest

from seatrial.serve.listening import emptied, listen, refuse_new


def test_who_has_connected_is_accepted_and_heard_and_nobody_else_can_connect():
    (listener,) = listen("127.0.0.1", 0, 1)
    with listener, socket.create_connection(listener.getsockname(), 5) as before:
        refuse_new(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), 0.2)
        accepted, _ = listener.accept()
        with accepted:
            before.sendall(b"hello")
            accepted.settimeout(5)
            assert accepted.recv(5) == b"hello"


def made_while_the_port_closes() -> tuple[int, int]:
    """(connections that clients took for made, how many of them were there to be accepted)."""
    (listener,) = listen("127.0.0.1", 0, 1)
    address, made = listener.getsockname(), []

    def connect() -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                made.append(socket.create_connection(address, 0.05))

    thread = threading.Thread(target=connect)
    thread.start()
    time.sleep(0.005)  # and not a loop, which would hold Python's lock between the thread's connections
    refuse_new(listener)
    thread.join()
    accepted = []
    while select.select([listener], [], [], 0)[0]:
        accepted.append(listener.accept()[0])
    found = len(made), len(accepted)
    for sock in (*made, *accepted, listener):
        sock.close()
    return found


def test_a_connection_that_is_being_made_while_the_port_closes_is_not_lost():
    """The last packet of a handshake that falls into that moment: of 150 ports, some see it."""
    for _ in range(150):
        made, accepted = made_while_the_port_closes()
        assert made == accepted


def test_a_queue_is_empty_only_when_all_are_accepted():
    async def main() -> list[bool]:
        (listener,) = listen("127.0.0.1", 0, 1)
        clients = [socket.create_connection(listener.getsockname(), 5) for _ in range(3)]
        waits = asyncio.ensure_future(emptied(listener, 10))
        states = []
        for _ in clients:
            await asyncio.sleep(0.05)
            states.append(waits.done())
            listener.accept()[0].close()
        states.append(await asyncio.wait_for(waits, 5))
        clients.append(socket.create_connection(listener.getsockname(), 5))
        states.append(await emptied(listener, 0.05))
        for sock in (*clients, listener):
            sock.close()
        return states

    assert asyncio.run(main()) == [False, False, False, True, False]

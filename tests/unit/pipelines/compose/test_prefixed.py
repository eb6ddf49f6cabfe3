"""Outputs of several services: whole lines, each behind its service's name."""

from __future__ import annotations

import threading

from seatrial.pipelines.compose.prefixed import Prefixed
from seatrial.runs.following.output import Stream


def test_pieces_become_lines_and_the_last_one_is_kept() -> None:
    written: list[bytes] = []
    prefixed = Prefixed(["a", "train"], lambda stream, data: written.append(data))
    write = prefixed.of("a")
    for piece in (b"on", b"e\ntw", b"o\n10%\r20%\r100%\n", "hal\u0062 \u00e4".encode()[:-1]):
        write("stdout", piece)
    write("stderr", b"beside\n")
    prefixed.finish("a")
    assert b"".join(written) == b"a     | one\na     | two\na     | 100%\na     | beside\na     | halb \xc3\n"


def test_lines_of_threads_are_not_mixed() -> None:
    written: list[bytes] = []
    prefixed = Prefixed(["a", "b"], lambda stream, data: written.append(data))

    def talk(name: str, stream: Stream) -> None:
        for n in range(200):
            prefixed.of(name)(stream, f"{name}{n}".encode())
            prefixed.of(name)(stream, b"x" * 50 + b"\n")

    threads = [threading.Thread(target=talk, args=(name, "stdout")) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = b"".join(written).decode().splitlines()
    assert len(lines) == 400
    assert [line for line in lines if line.startswith("a |")] == [f"a | a{n}{'x' * 50}" for n in range(200)]

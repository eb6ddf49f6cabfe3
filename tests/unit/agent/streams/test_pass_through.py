"""The way out of a container: whole writes only, evidence before output, and nobody waits for ever."""

import os
import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.agent import framed_output
from seatrial.agent.framed_output import PassThrough

WRITES = st.lists(st.tuples(st.integers(1, 60_000), st.booleans()), min_size=1, max_size=40)


class Reader(threading.Thread):
    """Reads the other end of a pipe, sometimes not for a while."""

    def __init__(self, descriptor, pauses_s):
        super().__init__(daemon=True)
        self._descriptor, self._pauses_s = descriptor, pauses_s
        self.caught = b""

    def run(self):
        while data := os.read(self._descriptor, 5000):
            self.caught += data
            if self._pauses_s:
                time.sleep(self._pauses_s.pop())


def through(writes, pauses_s, stall_s=0.01):
    """(what arrived, the way) of these (size, keep), each told apart by its number."""
    read_end, write_end = os.pipe()
    reader = Reader(read_end, pauses_s)
    try:
        way = PassThrough(write_end)
        patch = pytest.MonkeyPatch()
        patch.setattr(framed_output, "STALL_S", stall_s)
        patch.setattr(framed_output, "_BACKLOG_BYTES", 100_000)
        reader.start()
        try:
            for number, (size, keep) in enumerate(writes):
                way.write(b"<%d" % number + b"." * size + b">", keep=keep)
        finally:
            patch.undo()
        way.flush(5.0)
    finally:
        os.close(write_end)
        reader.join()
        os.close(read_end)
    return reader.caught, way


@settings(max_examples=15, deadline=None)
@given(WRITES, st.integers(0, 2**32))
def test_what_arrives_is_whole_writes_in_order_with_all_that_is_kept(writes, seed):
    pauses_s = [random.Random(seed).choice([0, 0, 0, 0.03]) for _ in range(20)]
    caught, way = through(writes, pauses_s)
    parts = caught.split(b">")
    assert parts.pop() == b""
    numbers = [int(part[1:].split(b".")[0]) for part in parts]
    assert numbers == sorted(set(numbers))
    for part, number in zip(parts, numbers, strict=True):
        assert part == b"<%d" % number + b"." * writes[number][0]
    assert {number for number, (_, keep) in enumerate(writes) if keep} <= set(numbers)
    lost = sum(len(b"<%d>" % number) + size for number, (size, _) in enumerate(writes) if number not in numbers)
    assert way.dropped_bytes == lost


def test_what_is_kept_has_an_end(monkeypatch):
    """A reader that never comes back does not take the container's memory."""
    monkeypatch.setattr(framed_output, "STALL_S", 0.01)
    monkeypatch.setattr(framed_output, "_KEPT_BYTES", 1_000_000)
    read_end, write_end = os.pipe()
    way = PassThrough(write_end)
    for _ in range(100):
        way.write(b"x" * 100_000, keep=True)
    assert way.dropped_bytes > 8_000_000 and way._bytes < 1_200_000
    os.close(read_end)
    os.close(write_end)


def test_a_reader_that_stalls_once_is_not_waited_for_again(monkeypatch):
    monkeypatch.setattr(framed_output, "STALL_S", 0.2)
    read_end, write_end = os.pipe()
    way = PassThrough(write_end)
    began = time.monotonic()
    for _ in range(100):
        way.write(b"x" * 100_000)
    assert 0.2 <= time.monotonic() - began < 10.0  # 20 s if each were
    os.close(read_end)
    os.close(write_end)


def test_a_reader_that_leaves_takes_the_rest_with_it():
    read_end, write_end = os.pipe()
    way = PassThrough(write_end)
    way.write(b"x" * 200_000, keep=True)
    assert way.waiting
    os.close(read_end)
    way.flush(0)
    way.write(b"more", keep=True)
    assert not way.waiting
    os.close(write_end)

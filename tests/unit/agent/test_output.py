"""Streams to files and out of a container: whole writes only, evidence before output, and nobody waits for ever."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import events
from seatrial.agent import journal, output
from seatrial.agent.journal import Journal, PassThrough, Redactor
from seatrial.agent.output import Activity

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
    """(bytes that arrived, the way) of these (size, keep), each known by its number."""
    read_end, write_end = os.pipe()
    reader = Reader(read_end, pauses_s)
    try:
        way = PassThrough(write_end)
        patch = pytest.MonkeyPatch()
        patch.setattr(journal, "STALL_S", stall_s)
        patch.setattr(journal, "_BACKLOG_BYTES", 100_000)
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
    monkeypatch.setattr(journal, "STALL_S", 0.01)
    monkeypatch.setattr(journal, "_KEPT_BYTES", 1_000_000)
    read_end, write_end = os.pipe()
    way = PassThrough(write_end)
    for _ in range(100):
        way.write(b"x" * 100_000, keep=True)
    assert way.dropped_bytes > 8_000_000 and way._bytes < 1_200_000
    os.close(read_end)
    os.close(write_end)


def test_a_reader_that_stalls_is_waited_for_once_and_one_that_leaves_takes_the_rest(monkeypatch):
    monkeypatch.setattr(journal, "STALL_S", 0.5)
    read_end, write_end = os.pipe()
    way = PassThrough(write_end)
    began = time.monotonic()
    for _ in range(100):
        way.write(b"x" * 100_000)
    assert 0.5 <= time.monotonic() - began < 40.0 and way.dropped_bytes > 1_000_000
    way.write(b"x" * 200_000, keep=True)
    assert way.waiting
    os.close(read_end)
    way.flush(0)
    way.write(b"more", keep=True)
    assert not way.waiting
    os.close(write_end)


@pytest.fixture
def stream_of(tmp_path):
    """A stream whose engine is a pipe, and that pipe's other end; its source is written with ``text``."""

    def make(text, folder, number=1):
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.write(write_end, text)
        os.close(write_end)
        engine_read, engine_write = os.pipe()
        activity = Activity()
        stream = output.Stream(number, read_end, folder, Redactor([b"hunter2"]), Journal(str(tmp_path)), activity)
        stream.engine = journal.PassThrough(engine_write)
        while stream.pump():
            pass
        os.close(engine_write)
        return os.read(engine_read, 1000), activity

    return make


def notes(tmp_path):
    return [event["message"] for event in events.read(str(tmp_path / "events.jsonl"))[0]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_keeps_the_stream_flowing_and_is_noted(tmp_path, stream_of, monkeypatch):
    open_log = output._open_log
    monkeypatch.setattr(
        output,
        "_open_log",
        lambda folder, name: open_log(folder, name) if name == "output.idx" else os.open("/dev/full", os.O_WRONLY),
    )
    passed_on, _ = stream_of(b"still here", str(tmp_path))
    assert passed_on == b"still here"
    assert (tmp_path / "output.idx").read_bytes() == b""
    assert notes(tmp_path) == [
        "output is being lost: No space left on device",
        "10 bytes of output are in no log file: the disk was full",
    ]


def test_without_a_container_both_log_and_index_are_the_agents(tmp_path, stream_of):
    passed_on, activity = stream_of(b"a hunter2\n", str(tmp_path), number=2)
    assert passed_on == (tmp_path / "stderr.log").read_bytes() == b"a [redacted]\n"
    [(_, number, size)] = [line.split() for line in (tmp_path / "output.idx").read_text().splitlines()]
    assert (number, int(size)) == ("2", 13) and activity.new()
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("stderr.log", "output.idx")} == {0o600}


def test_a_log_that_is_a_link_is_not_written_through(tmp_path, stream_of):
    outside = tmp_path / "outside"
    outside.touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stdout.log").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        stream_of(b"text\n", str(tmp_path / "run"))
    assert outside.read_bytes() == b""

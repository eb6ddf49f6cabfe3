"""Streams to files: a reader that is gone or stalls, and a full disk."""

import fcntl
import os
from pathlib import Path

import pytest

from seatrial import events
from seatrial.agent import output, pass_through
from seatrial.agent.journal import Journal
from seatrial.agent.redaction import Redactor


def pipe_full_of(count):
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, 1031, count)  # F_SETPIPE_SZ
    return read_end, write_end


def test_a_reader_that_left_costs_nothing():
    read_end, write_end = os.pipe()
    os.close(read_end)
    engine = pass_through.PassThrough(write_end)
    engine.write(b"x" * 100_000)
    assert not engine.waiting
    os.close(write_end)


def test_a_reader_that_stalls_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(pass_through, "STALL_S", 0.1)
    read_end, write_end = pipe_full_of(4096)
    engine = pass_through.PassThrough(write_end)
    for _ in range(20):
        engine.write(b"x" * 100_000)
    assert engine.dropped_bytes > 1_000_000
    os.close(read_end)
    os.close(write_end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_keeps_the_stream_flowing_and_is_noted(tmp_path):
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    engine_read, engine_write = os.pipe()
    journal = Journal(str(tmp_path / "events.jsonl"))
    index = output.open_index(str(tmp_path / "output.idx"))
    stream = output.Stream(1, read_end, "/dev/full", index, Redactor([]), journal)
    stream.engine = pass_through.PassThrough(engine_write)
    os.write(write_end, b"still here")
    os.close(write_end)
    while stream.pump():
        pass
    assert os.read(engine_read, 100) == b"still here"
    assert (tmp_path / "output.idx").read_bytes() == b""
    notes = [event["message"] for event in events.read(str(tmp_path / "events.jsonl"))[0]]
    assert notes == [
        "output is being lost: No space left on device",
        "10 bytes of output are in no log file: the disk was full",
    ]

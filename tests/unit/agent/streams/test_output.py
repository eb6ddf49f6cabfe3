"""Streams to files: a reader that is gone or stalls, and a full disk."""

import fcntl
import os
from pathlib import Path

import pytest

from seatrial import events
from seatrial.agent import framed_output, output
from seatrial.agent.journal import Journal, Redactor
from seatrial.agent.output import Activity


def pipe_full_of(count):
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, 1031, count)  # F_SETPIPE_SZ
    return read_end, write_end


def test_a_reader_that_left_costs_nothing():
    read_end, write_end = os.pipe()
    os.close(read_end)
    engine = framed_output.PassThrough(write_end)
    engine.write(b"x" * 100_000)
    assert not engine.waiting
    os.close(write_end)


def test_a_reader_that_stalls_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(framed_output, "STALL_S", 0.1)
    read_end, write_end = pipe_full_of(4096)
    engine = framed_output.PassThrough(write_end)
    for _ in range(20):
        engine.write(b"x" * 100_000)
    assert engine.dropped_bytes > 1_000_000
    os.close(read_end)
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
        stream.engine = framed_output.PassThrough(engine_write)
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


def test_in_a_container_there_is_no_file(tmp_path, stream_of):
    (tmp_path / "elsewhere").mkdir()
    assert stream_of(b"text\n", None)[0] == b"text\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "events.jsonl"]


def test_a_log_that_is_a_link_is_not_written_through(tmp_path, stream_of):
    outside = tmp_path / "outside"
    outside.touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stdout.log").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        stream_of(b"text\n", str(tmp_path / "run"))
    assert outside.read_bytes() == b""

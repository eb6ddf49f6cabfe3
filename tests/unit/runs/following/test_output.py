"""Both streams come back in the order they were printed, however the agent ended."""

import pytest

from seatrial.runs.following.streams import OfRank, OutputReader


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "stdout.log").write_bytes(b"one\nthree\n")
    (tmp_path / "stderr.log").write_bytes(b"two\n")
    (tmp_path / "output.idx").write_bytes(b"1.0 1 4\n1.1 2 4\n1.2 1 6\n")
    return tmp_path


def test_the_streams_are_interleaved_as_printed(folder):
    assert list(OutputReader(folder).new()) == [("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n")]


def test_a_line_of_the_index_still_being_written_waits(folder):
    (folder / "output.idx").write_bytes(b"1.0 1 4\n1.1 2")
    reader = OutputReader(folder)
    assert list(reader.new()) == [("stdout", b"one\n")]
    (folder / "output.idx").write_bytes(b"1.0 1 4\n1.1 2 4\n")
    assert list(reader.new()) == [("stderr", b"two\n")]


def test_what_a_killed_agent_left_out_of_the_index_is_not_lost(folder):
    (folder / "output.idx").write_bytes(b"1.0 1 4\n")
    reader = OutputReader(folder)
    list(reader.new())
    assert sorted(reader.rest()) == [("stderr", b"two\n"), ("stdout", b"three\n")]


def test_the_tail_begins_at_a_chunk(folder):
    reader = OutputReader(folder)
    reader.skip_to_last(2)
    assert list(reader.new()) == [("stderr", b"two\n"), ("stdout", b"three\n")]


def test_the_lines_of_one_rank_are_picked_out_whole():
    got = []
    write = OfRank(1, lambda stream, data: got.append((stream, data)))
    for stream, data in [
        ("stdout", b"[rank0]: a\n[rank1]: b\n[ra"),
        ("stderr", b"[rank1]: warning\n[rank10]: other\n"),
        ("stdout", b"nk1]: c\nno mark\n[rank1]: unfinished"),
    ]:
        write(stream, data)
    assert got == [("stdout", b"[rank1]: b\n"), ("stderr", b"[rank1]: warning\n"), ("stdout", b"[rank1]: c\n")]

"""Frames: whatever goes in comes out again, also in pieces, and stdout stays readable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seatrial import frames

_LINE = st.binary(max_size=200).map(lambda data: data.replace(b"\n", b" "))
_LONG = st.integers(0, 3 * frames.PIECE_BYTES).map(lambda size: b"x" * size)
_KIND = st.sampled_from([frames.STDOUT, frames.STDERR, frames.EVIDENCE])


@given(st.lists(st.tuples(_KIND, st.one_of(_LINE, _LONG)), max_size=20))
def test_lines_come_back(written: list[tuple[bytes, bytes]]) -> None:
    log = b"".join(frames.encode(kind, line) for kind, line in written)
    decoder = frames.Decoder()
    streams = {frames.EVIDENCE: b"", frames.STDERR: b"", frames.STDOUT: b""}
    for line in log.split(b"\n")[:-1]:
        assert len(line) <= frames.PIECE_BYTES + 2
        kind, data = decoder.feed(line + b"\n")
        streams[kind] += data
    for kind in streams:
        assert streams[kind] == b"".join(line + b"\n" for of, line in written if of == kind)


def test_stdout_is_as_it_was() -> None:
    assert frames.encode(frames.STDOUT, b"epoch 1: loss 0.5") == b"epoch 1: loss 0.5\n"
    assert frames.encode(frames.STDERR, b"warning") == b"\x1fwarning\n"


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_chunks_of_a_stream_come_back(chunks: list[bytes]) -> None:
    splitter = frames.LineSplitter(frames.STDERR)
    log = b"".join(splitter.feed(chunk) for chunk in chunks) + splitter.flush()
    decoder = frames.Decoder()
    read = b"".join(decoder.feed(line + b"\n")[1] for line in log.split(b"\n")[:-1])
    assert read == b"".join(chunks)

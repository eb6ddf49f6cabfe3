"""Frames: each byte comes out again, also in pieces, and stdout stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import frames
from seatrial.frames import MOST_BYTES, InputDecoder, Message, NotOursError, encode_input, encode_size

_LINE = st.binary(max_size=200).map(lambda data: data.replace(b"\n", b" "))
_LONG = st.integers(0, 3 * frames.PIECE_BYTES).map(lambda size: b"x" * size)
_KIND = st.sampled_from([frames.STDOUT, frames.STDERR, frames.EVIDENCE, frames.REPORT])


@given(st.lists(st.tuples(_KIND, st.one_of(_LINE, _LONG)), max_size=20))
def test_lines_come_back(written: list[tuple[bytes, bytes]]) -> None:
    log = b"".join(frames.encode(kind, line) for kind, line in written)
    decoder = frames.FrameDecoder()
    streams = {frames.EVIDENCE: b"", frames.REPORT: b"", frames.STDERR: b"", frames.STDOUT: b""}
    for line in log.split(b"\n")[:-1]:
        assert len(line) < 16 * 1024
        kind, data = decoder.feed(line + b"\n")
        streams[kind] += data
    assert not decoder.waiting
    for kind in streams:
        assert streams[kind] == b"".join(line + b"\n" for of, line in written if of == kind)


def test_stdout_is_as_it_was() -> None:
    assert frames.encode(frames.STDOUT, b"epoch 1: loss 0.5") == b"epoch 1: loss 0.5\n"
    assert frames.encode(frames.STDERR, b"warning") == b"\x1fwarning\n"


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_chunks_of_a_stream_come_back(chunks: list[bytes]) -> None:
    splitter = frames.LineSplitter(frames.STDERR)
    log = b"".join(splitter.feed(chunk) for chunk in chunks) + splitter.flush()
    decoder = frames.FrameDecoder()
    read = b"".join(decoder.feed(line + b"\n")[1] for line in log.split(b"\n")[:-1])
    assert read == b"".join(chunks)


_MARKS = st.sampled_from([b"\x1e", b"\x02", b"\x1f", b"\x1c", b"\x1d", b"\n", b"\r", b"{}", b"1 2 ", b"x" * 9000])
_PRINTED = st.lists(_MARKS, max_size=20).map(b"".join)
_OUTPUTS = st.sampled_from([frames.STDOUT, frames.STDERR])


@settings(deadline=None)
@given(_PRINTED, st.integers(1, 20_000), _OUTPUTS)
def test_no_output_is_ever_evidence(printed: bytes, chunk: int, kind: bytes) -> None:
    """Whatever a target prints, and however its writes fall: each line of the log is output of that stream."""
    splitter = frames.LineSplitter(kind)
    chunk = max(chunk, len(printed) // 50)
    chunks = [printed[at : at + chunk] for at in range(0, len(printed), chunk)]
    log = b"".join(map(splitter.feed, chunks)) + splitter.flush()
    decoder = frames.FrameDecoder()
    decoded = [decoder.feed(line) for line in log.split(b"\n")[:-1]]
    assert {of for of, _ in decoded} <= {kind}
    assert b"".join(data for _, data in decoded) == printed
    assert not decoder.waiting


@settings(deadline=None)
@given(_PRINTED, st.integers(0, 20_000), _OUTPUTS)
def test_a_reader_that_begins_anywhere_takes_no_output_for_evidence(printed: bytes, start: int, kind: bytes) -> None:
    splitter = frames.LineSplitter(kind)
    log = splitter.feed(printed) + splitter.flush()
    decoder = frames.FrameDecoder()
    kinds = {decoder.feed(line)[0] for line in log[start:].split(b"\n")}
    assert kinds <= {frames.STDOUT, frames.STDERR}


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_no_log_is_too_odd_to_be_taken_apart(lines: list[bytes]) -> None:
    decoder = frames.FrameDecoder()
    for line in lines:
        kind, data = decoder.feed(line)
        assert kind in (frames.STDOUT, frames.STDERR, frames.EVIDENCE, frames.REPORT)
        assert data == b"" or kind in (frames.STDOUT, frames.STDERR) or data.endswith(b"\n")


# -------------------------------------------------------------------- input


@given(st.lists(st.binary(max_size=300) | st.tuples(st.integers(0, 500), st.integers(0, 500))), st.data())
def test_messages_come_whole_however_they_are_cut(messages: list[bytes | tuple[int, int]], data: st.DataObject) -> None:
    sent = b"".join(encode_input(each) if isinstance(each, bytes) else encode_size(*each) for each in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    decoder, came = InputDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        came += decoder.feed(sent[start:end])
    assert came == [Message(data=each) if isinstance(each, bytes) else Message(size=each) for each in messages]


@pytest.mark.parametrize(
    "bytes_of_another",
    [b"hello", b"s" + bytes(4), b"i" + (MOST_BYTES + 1).to_bytes(4, "big"), encode_input(b"") + b"\0\0\0\0\0"],
)
def test_what_somebody_else_writes_is_refused_and_a_window_of_any_size_cut(bytes_of_another: bytes) -> None:
    with pytest.raises(NotOursError):
        InputDecoder().feed(bytes_of_another)
    assert InputDecoder().feed(encode_size(100_000, 10)) == [Message(size=(65_535, 10))]

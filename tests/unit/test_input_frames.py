from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.input_frames import MOST_BYTES, InputDecoder, Message, NotOursError, encode_input, encode_size


@given(st.lists(st.binary(max_size=300) | st.tuples(st.integers(0, 500), st.integers(0, 500))), st.data())
def test_messages_come_whole_however_they_are_cut(messages: list[bytes | tuple[int, int]], data: st.DataObject) -> None:
    sent = b"".join(encode_input(each) if isinstance(each, bytes) else encode_size(*each) for each in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    decoder, came = InputDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        came += decoder.feed(sent[start:end])
    assert came == [Message(data=each) if isinstance(each, bytes) else Message(size=each) for each in messages]


def test_a_window_larger_than_the_kernel_counts_is_cut() -> None:
    assert InputDecoder().feed(encode_size(100_000, 10)) == [Message(size=(65_535, 10))]


@pytest.mark.parametrize(
    "bytes_of_another",
    [b"hello", b"s" + bytes(4), b"i" + (MOST_BYTES + 1).to_bytes(4, "big"), encode_input(b"") + b"\0\0\0\0\0"],
)
def test_what_somebody_else_writes_is_refused(bytes_of_another: bytes) -> None:
    with pytest.raises(NotOursError):
        InputDecoder().feed(bytes_of_another)

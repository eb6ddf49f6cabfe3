"""Frames between fronts and model: whatever the rows are and however the bytes are cut, the same comes out."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from seatrial.serve import wire  # noqa: E402

TYPES = ("u1", "i4", "i8", "f2", "f4", "f8", "?", "<U5")


@st.composite
def rows(draw):
    """Rows of one model: as many inputs in each, of any shapes, lengths and, for a text's, types."""
    inputs = draw(st.integers(1, 3))
    dimensions = [draw(st.integers(0, 3)) for _ in range(inputs)]

    def array(n):
        shape = tuple(draw(st.integers(0, 4)) for _ in range(dimensions[n]))
        values = np.arange(int(np.prod(shape))).reshape(shape)
        made = values.astype(draw(st.sampled_from(TYPES)))
        return made.T if draw(st.booleans()) and made.ndim > 1 else made  # not as it lies in memory

    return [tuple(array(n) for n in range(inputs)) for _ in range(draw(st.integers(1, 6)))]


@given(rows(), st.integers(1, 50))
@settings(max_examples=60)
def test_rows_come_back_as_they_were(rows, cut):
    numbers = list(range(2**40, 2**40 + len(rows)))
    data = wire.encode_rows(wire.ROWS, numbers, rows) + wire.frame(wire.READY)
    frames, found = wire.Frames(), []
    for at in range(0, len(data), cut):
        found += frames.feed(data[at : at + cut])
    assert found.pop() == (wire.READY, b"")
    back = {}
    for kind, payload in found:
        assert kind == wire.ROWS
        back.update(zip(*wire.decode_rows(payload), strict=True))
    assert sorted(back) == numbers
    for number, row in zip(numbers, rows, strict=True):
        assert len(back[number]) == len(row)
        for got, sent in zip(back[number], row, strict=True):
            assert got.dtype == sent.dtype and got.shape == sent.shape and np.array_equal(got, sent)


def test_numbers():
    (frame,) = wire.Frames().feed(wire.encode_numbers(wire.ABANDONED, [1, 2**63]))
    assert frame[0] == wire.ABANDONED and wire.decode_numbers(frame[1]) == [1, 2**63]

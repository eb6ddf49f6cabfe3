"""Outputs of several members on one terminal."""

from __future__ import annotations

import pytest

from seatrial.compose.output import MemberOutput
from seatrial.compose.request import Console


def lines(chunks: list[tuple[str, str, bytes]], names: list[str]) -> bytes:
    written: list[bytes] = []

    def nobody(*_: object) -> None:
        raise AssertionError("not requested")

    made = MemberOutput(Console(nobody, nobody, lambda stream, data: written.append(data), nobody, nobody), names)
    for name, stream, data in chunks:
        made.writer(name)(stream, data)  # type: ignore[arg-type]
    for name in names:
        made.end(name)
    return b"".join(written)


@pytest.mark.parametrize(
    ("pieces", "printed"),
    [
        ([b"10 %\r20 %\r", b"30 %\r\nno end", b"\xff\xfe"], b"a | 10 %\na | 20 %\na | 30 %\na | no end\xff\xfe\n"),
        ([b"\r\x1b[2K\x1b[32m1/2\x1b[0m\r\x1b[2K2/2\n"], b"a | \na | \x1b[32m1/2\x1b[0m\na | 2/2\n"),
        ([b"\n\nx\n"], b"a | \na | \na | x\n"),
    ],
    ids=["a last line without an end", "a bar that erases its line keeps its colours", "empty lines stay"],
)
def test_lines_of_one_member(pieces: list[bytes], printed: bytes) -> None:
    assert lines([("a", "stdout", piece) for piece in pieces], ["a"]) == printed


def test_lines_come_whole_any_way_pieces_they_came_in() -> None:
    chunks = [("a", "stdout", b"one\ntw"), ("long", "stdout", b"x\n"), ("a", "stderr", b"E\n"), ("a", "stdout", b"o\n")]
    assert lines(chunks, ["a", "long"]) == b"a    | one\nlong | x\na    | E\na    | two\n"


def test_a_line_without_any_end_is_not_kept_for_ever() -> None:
    assert lines([("a", "stdout", b"x" * 70_000)], ["a"]).startswith(b"a | xxx")

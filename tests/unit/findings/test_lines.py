"""Lines as terminals, loggers, launchers and notebooks leave them → the words of the program."""

from __future__ import annotations

import pytest

from seatrial.findings.match import Seams, one_byte_letters, without_steering

BROKEN = {
    "at 80 columns": (b"x" * 70 + b"CUDA out o", b"f memory. Tried to allocate 2.00 GiB"),
    "between words": (b"x" * 60 + b" RuntimeError: CUDA out of", b"memory. Tried to allocate 2.00 GiB"),
    "behind ranks": (b"[rank3]: " + b"x" * 70 + b" CUDA out", b"[rank3]: of memory. Tried"),
    "behind mpirun's": (b"[1,0]<stderr>:" + b"x" * 70 + b" CUDA out", b"[1,0]<stderr>:of memory. Tried"),
    "behind kubectl's": (b"[pod/train-0/main] " + b"x" * 70 + b" CUDA out", b"[pod/train-0/main] of memory. Tried"),
    "behind times": (
        b"2025-06-02T11:00:12.123Z " + b"x" * 70 + b" CUDA out",
        b"2025-06-02T11:00:13.123Z of memory.",
    ),
    "in a frame": ("│ ".encode() + b"x" * 66 + b" CUDA out o" + " │".encode(), "│ f memory │".encode()),
    "with colours": (b"\x1b[31m" + b"x" * 70 + b"CUDA out o\x1b[0m", b"\x1b[31mf memory\x1b[0m"),
    "with Windows' ends": (b"x" * 70 + b"CUDA out o\r\n", b"f memory\r\n"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_where_two_lines_were_one(case: str) -> None:
    first, second = BROKEN[case]
    seams = Seams()
    assert seams.before(first) is None
    seam = seams.before(second)
    assert seam is not None and any(b"CUDA out of memory" in joint.join(seam) for joint in (b"", b" "))


def test_a_line_that_is_shorter_than_others_was_not_broken() -> None:
    seams = Seams()
    seams.before(b"x" * 200)
    seams.before(b"loss: 0.3, and then a sentence of about sixty characters, CUDA out")
    assert seams.before(b"of memory of mine") is None


@pytest.mark.parametrize(
    "line",
    [
        b"\x1b[1;31mCUDA\x1b[0m \x1b[31mout of memory\x1b[0m",
        b'{"log": "\\u001b[31mCUDA\\u001b[0m out of memory"}',
        b"\\033[31mCUDA\\033[0m out of memory",
        b"\x1b]0;title\x07CUDA out of memory",
    ],
)
def test_what_steers_a_terminal_is_left_out(line: bytes) -> None:
    assert b"CUDA out of memory" in without_steering(line)


def test_sixteen_bits_a_letter() -> None:
    line = "\ufeffCUDA out of memory".encode("utf-16-le")
    assert b"CUDA out of memory" in one_byte_letters(line, line[:2])
    assert one_byte_letters(b"a\x00b", b"ab") == b"a\x00b"

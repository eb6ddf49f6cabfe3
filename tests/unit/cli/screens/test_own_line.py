"""The verdict begins on a line of its own, whatever the target left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from seatrial.cli.screen import Screen
screen = Screen()
screen.write("%s", b"%s")
screen.end_line()
print("verdict", flush=True)
"""


@pytest.mark.parametrize(
    ("stream", "text", "shown"),
    [
        ("stdout", "no end", b"no end\nverdict\n"),
        ("stdout", "an end\\n", b"an end\nverdict\n"),
        ("stderr", "no end", b"no end\nverdict\n"),
    ],
)
def test_in_one_file(stream: str, text: str, shown: bytes) -> None:
    program = PROGRAM % (stream, text)
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout == shown


def test_another_file_is_left_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM % ("stderr", "no end")], capture_output=True)
    assert (done.stdout, done.stderr) == (b"verdict\n", b"no end")

"""Whole lines of a growing file: each once, in any pieces, and when the file is replaced."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.events import Lines


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@given(st.lists(st.text("ab\n", max_size=12).map(str.encode), max_size=8))
def test_each_line_comes_once_when_it_is_complete(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        lines, read = Lines(str(path)), []
        for piece in pieces:
            add(path, piece)
            read += lines.new()
        *whole, rest = b"".join(pieces).split(b"\n")
        assert read == whole and list(lines.new()) == [] and lines.rest() == rest


@given(st.lists(st.text("ab", max_size=5).map(str.encode), min_size=1, max_size=8), st.integers(1, 60))
def test_the_end_of_a_file_has_no_half_of_a_line(reported: list[bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        data = b"".join(line + b"\n" for line in reported)
        path.write_bytes(data)
        lines = Lines(str(path))
        lines.skip_to_last(size)
        read = list(lines.new())
        assert read == reported[len(reported) - len(read) :]
        assert len(b"".join(read)) + len(read) <= size or size >= len(data)


def test_a_line_of_any_length_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["seatrial.events.read"], "MAX_LINE_BYTES", 10)
    lines = Lines(str(tmp_path / "log"))
    for piece in (b"before\n" + b"x" * 25, b"x" * 31 + b"\n", b"after\n", b"y" * 40):
        add(tmp_path / "log", piece)
    assert list(lines.new()) == [b"before", b"after"] and lines.too_long == 2 and lines.rest() == b""


@pytest.mark.parametrize("other", [b"", b"b\n", b"longer than before\n"])
def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path, other: bytes) -> None:
    path, new = tmp_path / "log", tmp_path / "new"
    add(path, b"first\n")
    lines = Lines(str(path))
    assert list(lines.new()) == [b"first"]
    new.write_bytes(other)
    new.rename(path)
    assert list(lines.new()) == other.splitlines()
    os.truncate(path, 0)
    assert list(lines.new()) == []
    add(path, b"again\n")
    assert list(lines.new()) == [b"again"]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    path, secret, printed = tmp_path / "log", tmp_path / "secret", []
    add(secret, b"secret\n")
    make = {"link": lambda: path.symlink_to(secret), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}
    make[kind]()
    lines = Lines(str(path), printed.append)
    lines.skip_to_last(100)
    assert list(lines.new()) == [] and lines.rest() == b"" and printed

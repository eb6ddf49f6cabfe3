"""Events read back: lines of a growing file, each once, and a target's reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial import events
from seatrial.events import EVIDENCE_TYPES, MAX_REPORT_BYTES, REPORT_TYPES, EvidenceLog, Lines, report
from seatrial.events.read import MAX_READ_BYTES


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


NAMES = st.sampled_from(["type", "source", "t", "_seq", "_chain", "node", "loss", "step"])
WORDS = st.sampled_from([*sorted(EVIDENCE_TYPES), "agent", "host", "target", *sorted(REPORT_TYPES), "note", "", "x"])
VALUES = WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.lists(WORDS, max_size=2)


def _pairs(pairs: list[tuple[str, object]]) -> bytes:
    """An object whose names may be there twice: the last one counts for Python, the first for others."""
    return ("{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs) + "}").encode()


OBJECTS = st.lists(st.tuples(NAMES, VALUES), max_size=8).map(_pairs)


@given(st.one_of(OBJECTS, st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
@example(b"")
@example(b'{"type":"gpu.context"}')
@example(b'{"type":["gpu.context"],"source":{"agent":1}}')
@example(b"1" * 5000)
@example(b'{"a":' * 3000)
@example(b"[" * 60_000)
@example(b'{"t":' + b"9" * 4000 + b"}")
@example(b'{"t":1e999,"loss":NaN}')
@example('{"\ud800":1}'.encode("utf-8", "surrogatepass"))
@example(b'{"a":"\\ud800"}')
def test_it_is_a_report_of_the_targets_or_nothing(line: bytes) -> None:
    step, claimed = report(line)
    assert step is None or claimed is None
    if step is not None:
        assert step["type"] in REPORT_TYPES
        assert step["type"] == "step" or json.loads(line)["type"] == step["type"]
        assert step["source"] == "target"
        assert not {"_seq", "_chain", "node"} & step.keys()
        assert step["t"] is None or (isinstance(step["t"], (int, float)) and not isinstance(step["t"], bool))
        back = events.parse(events.encode(step))
        assert back is not None and (back["type"], back["source"]) == (step["type"], "target")
    if claimed is not None:
        assert claimed in EVIDENCE_TYPES | {"step"}
        reported = json.loads(line)
        assert reported.get("type") in EVIDENCE_TYPES or reported.get("source") in ("agent", "host")


def test_a_line_is_long_at_most() -> None:
    longest = b'{"x":"' + b"y" * (MAX_REPORT_BYTES - 8) + b'"}'
    assert report(longest)[0] is not None
    assert report(longest + b" ") == (None, None)


@pytest.mark.parametrize("inner", ["1", "NaN"])
def test_no_depth_that_can_be_read_stops_who_writes_it_down(tmp_path: Path, inner: str) -> None:
    """Accept in the encoder, deeper in the stack, the largest input that the parser accepts."""
    log = EvidenceLog(str(tmp_path / "events.jsonl"), "host")
    limit = sys.getrecursionlimit()
    kept = 0
    for depth in [*range(1, 60), *range(limit - 200, limit + 50, 3), 5000]:
        step, claimed = report(b'{"a":' + b"[" * depth + inner.encode() + b"]" * depth + b"}")
        assert claimed is None
        if step is not None:
            log.append([step])
            kept += 1
    assert kept > 50
    assert events.follow_chain(str(tmp_path / "events.jsonl")).lines == kept


def test_evidence_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(MAX_READ_BYTES + 1)
    with pytest.raises(OSError, match="it has more than 4 GB"):
        events.read(str(tmp_path / "log"))


def test_events_of_one_kind_are_found_among_others(tmp_path: Path) -> None:
    with EvidenceLog(str(tmp_path / "log"), "agent") as log:
        for message in ("first", '"type":"note"', "last"):
            log.write(events.Note(message=message))
            log.write(events.Found(id='"type":"note"', severity="info", message="", cause=None, fix=None, evidence=[]))
    found = [event["message"] for event in events.find(str(tmp_path / "log"), events.Note)]
    assert found == ["first", '"type":"note"', "last"] and not [*events.find(str(tmp_path / "none"), events.Note)]

"""The chain of evidence: any change, addition or removal is found; several write at once; a torn end is cut."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import events
from seatrial.events import CHAIN_START, EvidenceLog, follow_chain

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
EVENTS = st.lists(KEYS.map(lambda keys: {"type": "step", **keys}), min_size=1, max_size=8)


def written(reported: list[dict[str, Any]]) -> bytes:
    """The log of these events, a write each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        log = EvidenceLog(str(path), "agent")
        for event in reported:
            log.append([event])
        log.close()
        return path.read_bytes()


def followed(data: bytes) -> events.Chain:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(data)
        return follow_chain(str(path))


@given(EVENTS, st.data())
def test_what_was_written_holds_and_a_changed_byte_is_found(
    reported: list[dict[str, Any]], choice: st.DataObject
) -> None:
    data = bytearray(written(reported))
    chain = followed(bytes(data))
    assert (chain.lines, chain.broken_at) == (len(reported), None)
    assert json.loads(data.splitlines()[-1])["_chain"] == chain.digest != CHAIN_START
    at = choice.draw(st.integers(0, len(data) - 2))  # the last line's end alone belongs to no line
    other = choice.draw(st.integers(0, 255).filter(lambda byte: byte != data[at]))
    data[at] = other
    assert followed(bytes(data)).broken_at is not None


@given(EVENTS, EVENTS, st.data())
def test_a_removed_moved_or_added_line_is_found(
    reported: list[dict[str, Any]], forged: list[dict[str, Any]], choice: st.DataObject
) -> None:
    """At the end, by the digest that closed the log: what is left of it is a log. So is what was added."""
    data = written([*reported, {"type": "last"}])
    closed = followed(data)
    lines = data.splitlines(keepends=True)
    begin = choice.draw(st.integers(0, len(lines) - 1))
    end = choice.draw(st.integers(begin + 1, len(lines)))
    bare = [events.encode(event) for event in forged]
    assert _differs(closed, followed(b"".join(lines[:begin] + lines[end:])))
    for added in (written(forged).splitlines(keepends=True), bare):  # another log's, whose own chain holds; without one
        assert _differs(closed, followed(b"".join([*lines[:begin], *added, *lines[begin:]])))
    first, second = choice.draw(st.permutations(range(len(lines))).map(lambda order: order[:2]))
    lines[first], lines[second] = lines[second], lines[first]
    assert followed(b"".join(lines)).broken_at is not None


def _differs(closed: events.Chain, now: events.Chain) -> bool:
    return now.broken_at is not None or (now.lines, now.digest) != (closed.lines, closed.digest)


def _write_many(path: str, name: str, count: int) -> None:
    log = EvidenceLog(path, name)
    for number in range(count):
        log.write(events.Note(message=f"{name} {number}" + "x" * (number % 7) * 1000))


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write_many, args=(path, f"writer{n}", 300)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert follow_chain(path)[0::2] == (1200, None)
    read, skipped = events.read(path)
    assert skipped == 0
    for n in range(4):  # each in its own order
        own = [event["message"].rstrip("x") for event in read if event["source"] == f"writer{n}"]
        assert own == [f"writer{n} {number}" for number in range(300)]


@pytest.mark.parametrize("size", [10, 1000, 70_000, 1_000_000])
def test_what_a_killed_writer_left_unfinished_is_cut_off(tmp_path: Path, size: int) -> None:
    path = tmp_path / "events.jsonl"
    log, other = EvidenceLog(str(path), "agent"), EvidenceLog(str(path), "host")
    log.write(events.Note(message="first " + "x" * size))
    whole = path.read_bytes()
    for torn in (b"{", b'{"type":"note","message":"' + b"y" * size, whole[:-1]):
        with path.open("ab") as file:
            file.write(torn)
        other.write(events.Note(message="after"))
        assert follow_chain(str(path)).broken_at is None, torn[:40]
        log.write(events.Note(message="and so on"))
    assert [event["message"][:5] for event in events.read(str(path))[0]] == ["first", *["after", "and s"] * 3]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "events.jsonl")
    log = EvidenceLog(path, "host")
    log.write(events.Note(message="before"))
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space") as raised:
        log.append([{"type": "note", "message": "a"}, {"type": "note", "message": "b"}])
    assert raised.value.errno == errno.ENOSPC
    monkeypatch.undo()
    log.write(events.Note(message="after"))
    assert [event["message"] for event in events.read(path)[0]] == ["before", "after"]
    assert follow_chain(path)[0::2] == (2, None)


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        EvidenceLog(str(tmp_path / "events.jsonl"), "host")

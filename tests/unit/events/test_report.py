"""The target's reports: no input gives anything but a report, and none costs its reader anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial import events
from seatrial.events import EVIDENCE_TYPES, MAX_REPORT_BYTES, REPORT_TYPES, EvidenceLog, report

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

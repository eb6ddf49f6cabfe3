"""The kinds of events: what older versions wrote is still read, and no other file makes an event by hand."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seatrial
from seatrial import events
from seatrial.events import KINDS, Step
from seatrial.events.schema import Event
from tables import cases

RECORDED = Path(__file__).parents[2] / "recorded" / "events"
LOGS = sorted(RECORDED.glob("*.jsonl"))
ENVELOPE = ("t", "type", "source", "_seq", "node", "_chain")


def lines(path: Path) -> list[dict[str, Any]]:
    read, skipped = events.read(str(path))
    assert skipped == 0
    return read


def made_again(event: dict[str, Any]) -> dict[str, Any]:
    """The event of today's class, as it would be written."""
    kind = KINDS[event["type"]]
    keys = {key: value for key, value in event.items() if key in kind.__annotations__ or key not in ENVELOPE}
    made = events.as_dict(kind(**keys), event["source"], event["t"])
    return json.loads(events.encode({**made, **{key: event[key] for key in ("_seq", "node") if key in event}}))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_recorded_events_are_what_is_written_today(path: Path) -> None:
    for event in lines(path):
        assert made_again(event) == {key: value for key, value in event.items() if key != "_chain"}


def test_every_kind_was_recorded() -> None:
    assert {event["type"] for path in LOGS for event in lines(path)} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_refuses_a_key_that_it_has_not(kind: type[Event]) -> None:
    keys = dict.fromkeys(kind.__annotations__)
    assert vars(kind(**keys)) == keys
    if kind is not Step:
        with pytest.raises(TypeError, match="colour"):
            kind(**keys, colour=1)


PACKAGE = Path(seatrial.__file__).parent
#: File → its tree; each is parsed once.
TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_bytes())
    for path in sorted(PACKAGE.rglob("*.py"))
    if "events" not in path.relative_to(PACKAGE).parts[:1]
}

#: Who opens a run's evidence to write there: the agent, the collectors of what it reports, and the run itself.
WRITERS = {"agent/journal.py", "backends/log_sink.py", "runs/run.py"}

#: Beside the keys of its kind, a line may have these.
ENVELOPE = {"t", "type", "source", "node", "_seq", "_chain"}


#: Calls that take an event, or its kind.
CALLS = {"write", "record", "host_event", "of_type", "all", "first", "last", "dict", "update"}


def made_by_hand(tree: ast.AST) -> Iterator[str]:
    """Lines and words of what only seatrial.events may do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and (
            (_is_a_type(node) and "." in node.value) or '"type":"' in str(node.value).replace(" ", "")
        ):
            yield f"{node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Dict):
            keys = {key.value: node.values[n] for n, key in enumerate(node.keys) if isinstance(key, ast.Constant)}
            if "type" in keys and (_is_a_type(keys["type"]) or "t" in keys):
                yield f"{node.lineno}: an object with a type"
        elif isinstance(node, ast.Call) and _name(node) in CALLS:
            if any(map(_is_a_type, [*node.args, *(word.value for word in node.keywords if word.arg == "type")])):
                yield f"{node.lineno}: a call with a type"
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_type_key(node.slice):
            yield f"{node.lineno}: a type that is set"


def _is_a_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in KINDS


def _is_type_key(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "type"


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def test_no_other_file_makes_an_event_by_hand() -> None:
    found = {path: list(made_by_hand(tree)) for path, tree in TREES.items()}
    assert {path: places for path, places in found.items() if places} == {}


@cases("source")
def test_what_is_made_by_hand_is_seen(source: str) -> None:
    assert list(made_by_hand(ast.parse(source)))


def test_evidence_is_opened_by_its_writers_alone() -> None:
    calls = {path: [node for node in ast.walk(tree) if isinstance(node, ast.Call)] for path, tree in TREES.items()}
    assert {path for path, found in calls.items() if "EvidenceLog" in map(_name, found)} == WRITERS


def test_receipts_read_keys_that_are_written() -> None:
    """``moment.number("seconds")``: a key of some kind, or of every line."""
    known = ENVELOPE.union(*(kind.__annotations__ for kind in KINDS.values()))
    calls = (
        node
        for path, tree in TREES.items()
        if path.startswith("receipt/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("number", "text")
    )
    requested = {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    assert {"seconds", "exit_code"} <= requested <= known

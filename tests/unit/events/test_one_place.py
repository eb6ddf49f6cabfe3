"""Events are made in seatrial.events alone: no other file writes a type down, or puts a line together by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import seatrial
from seatrial.events import KINDS
from tables import cases

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

"""Events are made in seatrial.events alone: no other file writes a type down, or puts a line together by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import seatrial
from seatrial.events import KINDS
from tables import cases

PACKAGE = Path(seatrial.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "events" not in path.relative_to(PACKAGE).parts[:1])

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
    found = {str(path): list(made_by_hand(ast.parse(path.read_bytes()))) for path in FILES}
    assert {path: places for path, places in found.items() if places} == {}


@cases("source")
def test_what_is_made_by_hand_is_seen(source: str) -> None:
    assert list(made_by_hand(ast.parse(source)))


def test_evidence_is_opened_by_its_writers_alone() -> None:
    named = {path for path in FILES if _uses(ast.parse(path.read_bytes()), "EvidenceLog")}
    assert {str(path.relative_to(PACKAGE)) for path in named} == WRITERS


def _uses(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Call) and _name(node) == name for node in ast.walk(tree))


def test_receipts_read_keys_that_are_written() -> None:
    """``moment.number("seconds")``: a key of some kind, or of every line."""
    known = ENVELOPE.union(*(kind.__annotations__ for kind in KINDS.values()))
    requested = {
        node.args[0].value
        for path in (PACKAGE / "receipt").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("number", "text")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert {"seconds", "exit_code"} <= requested <= known

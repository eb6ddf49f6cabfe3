"""The same cause gives the same advice: inside the catalogue, and in the rest of the program."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import seatrial
from seatrial.findings import finding
from seatrial.findings.catalogue import entries

PACKAGE = Path(seatrial.__file__).parent

#: Commands that several places give.
SHARED = {
    name: text for name, text in vars(finding).items() if name.isupper() and isinstance(text, str) and " " in text
}

#: Words of a command that only looks ("kubectl describe pod X"), which any place may name.
FIRST_LOOK = 5


def test_one_cause_has_one_fix() -> None:
    fixes = defaultdict(set)
    for entry in entries():
        fixes[entry.cause.lower()].add(entry.fix)
    assert {cause: fix for cause, fix in fixes.items() if len(fix) > 1} == {}


def test_one_symptom_belongs_to_one_entry() -> None:
    owners = defaultdict(set)
    for entry in entries():
        for symptom in entry.symptoms:
            owners[symptom.lower()].add(entry.id)
    assert {symptom: ids for symptom, ids in owners.items() if len(ids) > 1} == {}


def test_shared_commands_are_fixes_of_the_catalogue() -> None:
    """The TOML files repeat them."""
    fixes = [entry.fix for entry in entries()]
    assert [name for name, text in SHARED.items() if not any(text.split("   #")[0] in fix for fix in fixes)] == []


def test_nobody_else_writes_the_catalogues_texts() -> None:
    """A cause, a fix or a long command that stands in the catalogue is taken from there."""
    known = {_plain(text) for entry in entries() for text in (entry.cause, entry.fix)}
    known |= {_plain(text) for text in SHARED.values()}
    known = {text for text in known if len(text.split()) > FIRST_LOOK}
    repeated = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "findings"
        for line, text in _texts(ast.parse(path.read_text()))
        if _plain(text) in known
    ]
    assert repeated == []


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string of a file, f-strings with <name> where they have a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(str(part) for part in parts)


def _plain(text: str) -> str:
    """Without its comment, its case and its period; values are all the same."""
    command = text.split("   #")[0].strip().rstrip(".").lower()
    return "".join(part.rpartition("{")[0] + "{}" if "{" in part else part for part in command.split("}"))

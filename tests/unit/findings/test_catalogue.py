from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import seatrial.findings
from seatrial.findings.catalogue import by_id, entries
from seatrial.findings.finding import SEVERITIES
from seatrial.findings.known import GAP, Known

CATALOGUE = entries()
FOLDER = Path(seatrial.findings.__file__).parent


def test_ids_are_unique_kebab_case() -> None:
    ids = [entry.id for entry in CATALOGUE]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id) for id in ids)
    assert all(by_id(entry.id) is entry for entry in CATALOGUE)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_entries_are_complete(entry: Known) -> None:
    assert entry.severity in SEVERITIES
    assert entry.sources
    assert "\n" not in "".join((entry.title, entry.cause, entry.fix))
    assert not entry.title.endswith(".") and not entry.cause.endswith(".")
    # A symptom that begins with a gap would be searched for in every line.
    assert all(symptom and not symptom.startswith(GAP) for symptom in entry.symptoms)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_the_agent_can_carry_it(path: Path) -> None:
    """Python 3.8's grammar, and nothing imported but the standard library and ourselves."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    ours = [name for name in imported if name.startswith("seatrial.findings.")]
    assert set(imported) - set(ours) <= {"re", "shlex", "typing", "functools", "importlib", "seatrial.events"}

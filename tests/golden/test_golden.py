"""Behaviour is what the golden files say; ``python tests/golden/record.py`` writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fork_server
from golden.capture import HERE, Capture, capture_all

AREAS = ("plans", "corpus", "refusals", "receipts", "explain")
PROSE = ("plan", "receipt", "refusals", "help")

pytestmark = [
    pytest.mark.timeout(1200),  # all of them wait for one capture
    pytest.mark.slow,  # 290 command lines take three minutes of CPU; .ci/run starts them by themselves
    pytest.mark.skipif(os.getuid() != 0, reason="recorded as root: plans name the user"),
]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], dict[str, set[str]]]:
    """Everything that is captured of this tree: structure by area, and sentences by area."""

    def run(words: Any, cwd: Path, environ: Any) -> Any:
        return fork_server.server().run(words, cwd, environ, 120)

    capture = Capture(tmp_path_factory.mktemp("golden") / "root", run)
    return dict(capture_all(capture)), capture.sentences


@pytest.mark.parametrize("area", AREAS)
def test_structure_is_unchanged(captured: Any, area: str) -> None:
    approved = json.loads((HERE / "structure" / f"{area}.json").read_text())
    found = json.loads(json.dumps(captured[0][area]))
    changed = [case for case in {**approved, **found} if approved.get(case) != found.get(case)]
    assert changed == [], "\n".join(
        f"{case}: {_difference(approved.get(case), found.get(case))}" for case in changed[:20]
    )


@pytest.mark.parametrize("area", PROSE)
def test_prose_is_approved(captured: Any, area: str) -> None:
    approved = (HERE / "prose" / f"{area}.txt").read_text()
    found = "\n".join(sorted(captured[1][area])) + "\n"
    assert set(approved.splitlines()) ^ set(found.splitlines()) == set(), "python tests/golden/record.py writes it anew"


def _difference(approved: Any, found: Any, at: str = "") -> str:
    """Return the first path at which two values differ, and both values there."""
    if isinstance(approved, dict) and isinstance(found, dict):
        key = next(key for key in {**approved, **found} if approved.get(key) != found.get(key))
        return _difference(approved.get(key), found.get(key), f"{at}.{key}")
    if isinstance(approved, list) and isinstance(found, list) and len(approved) == len(found):
        number = next(number for number, pair in enumerate(zip(approved, found, strict=True)) if pair[0] != pair[1])
        return _difference(approved[number], found[number], f"{at}[{number}]")
    return f"{at}: approved {str(approved)[:300]}, found {str(found)[:300]}"

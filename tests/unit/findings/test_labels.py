"""One pair of words for cause and remedy, in every program and on every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import seatrial
from seatrial.findings.finding import CAUSE, FIX, in_one_line

PACKAGE = Path(seatrial.__file__).parent

#: ``"  why: …"``, ``"\\n  run: …"`` and ``("try", …)``: how causes and remedies were labelled before there was a pair.
OTHER = re.compile(r"""(["']|\\n) *(why|run|try)(: [{"']| {1,}["'])|[(\[]["'](why|try)["'],""")


@pytest.mark.parametrize("line", [r'f"\n  run: {fix}"', 'Row("try", x)', 'f"  try: {fix}"', '("why", cause)'])
def test_other_words_are_seen(line: str) -> None:
    assert OTHER.search(line)


@pytest.mark.parametrize("suffix", ["py", "html", "js"])
def test_nobody_has_other_words(suffix: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob(f"*.{suffix}"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OTHER.search(line)
    ]
    assert found == []


def test_the_training_library_has_the_same_word() -> None:
    text = (PACKAGE / "train" / "errors.py").read_text()
    assert f'FIX_LABEL = "{FIX}"' in text


def test_the_dashboard_gets_them_from_the_server() -> None:
    text = (PACKAGE / "dashboard" / "run_view.py").read_text()
    assert "from seatrial.findings.finding import CAUSE, FIX" in text
    for script in (PACKAGE / "dashboard" / "static").glob("*.js"):
        assert f'"{CAUSE}"' not in script.read_text() and f'"{FIX}"' not in script.read_text()


def test_a_line_of_a_log() -> None:
    assert in_one_line("No GPU", "none was passed", None) == "No GPU; cause: none was passed"
    assert in_one_line("No GPU", "none was passed", "ls") == "No GPU; cause: none was passed; fix: ls"

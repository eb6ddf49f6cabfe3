"""One pair of words for cause and remedy, in every program and on every page."""

from __future__ import annotations

from pathlib import Path

import seatrial
from seatrial.findings.finding import FIX, in_one_line

PACKAGE = Path(seatrial.__file__).parent


def test_the_training_library_has_the_same_word() -> None:
    text = (PACKAGE / "train" / "errors.py").read_text()
    assert f'FIX_LABEL = "{FIX}"' in text


def test_a_line_of_a_log() -> None:
    assert in_one_line("No GPU", "none was passed", None) == "No GPU; cause: none was passed"
    assert in_one_line("No GPU", "none was passed", "ls") == "No GPU; cause: none was passed; fix: ls"

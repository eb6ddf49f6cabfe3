"""docs/diagnosis.md explains every cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.diagnosis.diagnosis import MEANING

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"


@pytest.mark.parametrize("cause", MEANING)
def test_page_explains_each_cause(cause: str) -> None:
    assert f"| `{cause}` |" in PAGE.read_text(encoding="utf-8")

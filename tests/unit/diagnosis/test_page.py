"""docs/diagnosis.md tells every cause in the words that receipts have for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.diagnosis.diagnosis import MEANING

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"


@pytest.mark.parametrize("cause", MEANING)
def test_the_page_has_the_cause_as_receipts_print_it(cause: str) -> None:
    meaning = MEANING[cause]  # type: ignore[index]
    assert f"| `{cause}`: {meaning} |" in PAGE.read_text(encoding="utf-8")

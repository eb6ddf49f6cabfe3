"""The digits recipe trains without any download."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from seatrial import events
from seatrial.recipes import digits

pytestmark = pytest.mark.torch


def test_digits_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    assert digits.main(["--models", str(tmp_path), "--epochs", "3"]) == 0
    lines, _ = events.read(str(tmp_path / "events.jsonl"))
    assert lines[-1]["accuracy"] > 0.9
    assert (tmp_path / "digits.pth").stat().st_size > 0

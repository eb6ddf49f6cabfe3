"""A trial that its search ended: pruned is not failed, and only the host's word counts."""

from __future__ import annotations

from pathlib import Path

from seatrial.receipt.model import Receipt

from .conftest import Scenario, at, ending, prologue, running


def _ended(folder: Path, source: str = "host", **signal: object) -> Receipt:
    asked = at(12, "signal", source, signal=15, name="SIGTERM", forwarded_to=[], **signal)
    told = at(12.1, "signal", signal=15, name="SIGTERM", origin="engine", forwarded_to=[7])
    events = [*prologue(), *running(10), asked, told, *ending(12.5, None, signal=15)]
    return Scenario(events, model=None).judge(folder)


def test_one_that_fell_behind(tmp_path: Path) -> None:
    receipt = _ended(tmp_path, origin="pruner", why="loss 2.1 after 2 reports is not in the best quarter of 9 trials")
    assert (receipt.exit_cause.id, receipt.outcome.id, receipt.exit_code) == ("pruned", "pruned", 0)
    assert receipt.outcome.words.startswith("Pruned after 9 s: ")
    assert receipt.outcome.level == "none" and "failed" not in receipt.outcome.sentence


def test_one_whose_search_has_ended(tmp_path: Path) -> None:
    receipt = _ended(tmp_path, origin="search", why="its time was over")
    assert (receipt.exit_cause.id, receipt.exit_code) == ("stopped", 1)
    assert "Stopped by the search after" in receipt.outcome.words and "its time was over" in receipt.outcome.words


def test_a_target_cannot_say_that_it_was_pruned(tmp_path: Path) -> None:
    for source in ("agent", "target"):
        folder = tmp_path / source
        folder.mkdir()
        assert _ended(folder, source, origin="pruner", why="I was slow").exit_cause.id != "pruned"

"""The receipt of a tune and of a run that applies one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seatrial.job.tables import Tuning
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import markdown, pages, terminal
from tables import constant

from .conftest import EXITED, Scenario, at

REPORT: dict[str, Any] = constant(__file__, "report")


def judged(folder: Path, report: Any, *, code: int = 0, tuning: bool = True, changes: Any = None) -> Receipt:
    lines = report if isinstance(report, list) else [{"tune": report}]
    return Scenario(
        [
            at(0, "agent.started", pid=1, python="3.11.7", cgroup={}, alterable=None),
            at(1, "target.started", pid=7, argv=["python", "train.py"], launcher="none", framework=None),
            *[at(2 + n, "step", "target", **line) for n, line in enumerate(lines)],
            at(90, "target.exited", exit_code=code, signal=None, cause="exited", seconds=89.0),
            at(91, "agent.finished", exit_code=code, energy_j={}, contexts=[]),
        ],
        state=EXITED,
        job={"tuning": Tuning()} if tuning else {},
        agent={"changes": changes},
    ).judge(folder)


def shown(receipt: Receipt, width: int = 80) -> str:
    file = io.StringIO()
    terminal.render(receipt, Console(file=file, width=width))
    return file.getvalue()


def test_table_is_in_every_rendering(tmp_path: Path) -> None:
    receipt = judged(tmp_path, REPORT)
    assert receipt.tune is not None and receipt.tune.kept == {"workers": 8, "persistent_workers": True}
    assert receipt.header.target.startswith("tune train.py") and receipt.exit_code == 0
    for text in (shown(receipt), markdown.render(receipt).replace("\\", ""), pages.render(receipt)):
        for words in ("as it is", "persistent_workers, workers=8", "2.00 ×", "trains differently", "(1.95–2.06)"):
            assert words in text
        for words in ("one process trains", "two seeds", "train.py:31", "(0.20–1.70); measure longer"):
            assert words in text
        assert "margin of a change is 0.12" in " ".join(text.split())
    assert "2.00 times as fast with persistent_workers, workers=8" in receipt.outcome.sentence
    assert "&lt;b&gt;no" in pages.render(receipt)
    for width in (60, 80, 120):
        assert all(len(line) <= width for line in shown(receipt, width).splitlines())
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt


def test_script_that_cannot_be_tuned_has_the_reason_at_the_top(tmp_path: Path) -> None:
    why = "it failed before its first step: FileNotFoundError: x"
    refusal = {"id": "crashed", "words": why, "fix": "seatrial run …"}
    receipt = judged(tmp_path, {"done": False, "trials": 1, "refusal": refusal}, code=1)
    assert (receipt.exit_code, receipt.exit_cause.words) == (1, f"The script cannot be tuned: {why}")
    assert " ".join(shown(receipt).split()).count(why) == 1 and "Steps/s" not in shown(receipt)


ODD_ROW = {"name": 4, "verdict": "best", "steps_per_s": "fast", "changes": {"x y": 1, "a": [1]}}


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"rows": 5, "kept": [], "baseline": "x", "files": 3, "places": {"workers": 3}, "not_tried": {"a": 1}},
        {"rows": [None, 3, ODD_ROW] * 99},
        {"baseline": {"steps_per_s": 1e400, "spread": -1}, "kept": {"workers": -1, "precision": "bf16; rm -rf /"}},
        {"seconds": "\u001b[31m", "trials": 1e99, "refusal": {"words": "\u001b[2Jgone"}},
    ],
)
def test_impossible_reports_of_a_tune_are_left_out(tmp_path: Path, report: Any) -> None:
    receipt = judged(tmp_path, report)
    assert receipt.tune is not None and receipt.tune.kept == {} and len(receipt.tune.rows) <= 40
    for text in (shown(receipt), markdown.render(receipt), pages.render(receipt)):
        assert "\u001b" not in text


def test_run_that_is_no_tune_has_no_table(tmp_path: Path) -> None:
    receipt = judged(tmp_path, REPORT, tuning=False)
    assert receipt.tune is None and "Steps/s" not in shown(receipt) and not receipt.measurements.metrics


def test_changes_from_outside_are_shown_with_those_not_applied(tmp_path: Path) -> None:
    lines = [{"tuned": {"applied": {"workers": 8}, "refused": {"compile": "the script compiles its model itself"}}}]
    requested = {"workers": 8, "compile": "default", "tf32": True}
    receipt = judged(tmp_path, lines, tuning=False, changes=requested)
    assert receipt.changes is not None and (receipt.changes.applied, receipt.changes.asked) == (
        {"workers": 8},
        requested,
    )
    text = " ".join(shown(receipt).split())
    for words in (
        " · docker · CPU · tuned ",
        "workers=8 (from outside, by [tune])",
        "compile was not applied: the script compiles its model itself",
        "tf32: nothing in the script took it",
    ):
        assert words in text

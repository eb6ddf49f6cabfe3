"""A container that its engine starts again: the receipt tells every start, and the last one decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.backends.base import State

from .conftest import Scenario, ending, prologue, rows_of, running


def start(at_s: float, code: int | None) -> list[dict[str, Any]]:
    """One start's lines, ``at_s`` later; None: it was killed and says nothing at its end."""
    lines = [*prologue(())[1:], *running(3, ()), *([] if code is None else ending(4, code))]
    return [{**line, "t": line["t"] + at_s, "_seq": seq} for seq, line in enumerate(lines, 1)]


def judged(folder: Path, *codes: int | None) -> Any:
    events = [line for number, code in enumerate(codes) for line in start(10.0 * number, code)]
    last = codes[-1]
    state = State("exited", 137 if last is None else last)
    run = Scenario([*prologue(())[:1], *events], backend="docker", state=state, gpus=(), gpu_mode="none")
    return run.judge(folder)


def starts(receipt: Any) -> str | None:
    return rows_of(receipt, "What ran").get("starts")


def test_of_one_start_nothing_is_said(tmp_path: Path) -> None:
    receipt = judged(tmp_path, 0)
    assert receipt.header.earlier_starts == () and starts(receipt) is None


def test_every_start_is_told_and_the_last_decides(tmp_path: Path) -> None:
    receipt = judged(tmp_path, 5, None, 0)
    assert receipt.header.earlier_starts == (5, None) and receipt.exit_code == 0 and receipt.seal.missing == 0
    assert starts(receipt) == "3: started again by the engine after exit code 5, a kill"


def test_the_last_one_failed(tmp_path: Path) -> None:
    failed = judged(tmp_path, 0, 7)
    assert failed.exit_cause.target_exit_code == 7 and failed.exit_code != 0, failed.exit_cause


def test_a_container_that_fails_for_hours(tmp_path: Path) -> None:
    told = starts(judged(tmp_path, *[3] * 30)) or ""
    assert told.startswith("30: started again by the engine after …, exit code 3") and told.count("exit code") == 8

"""One rank fails, and the others miss it: the failure comes first, or alone."""

from __future__ import annotations

import pytest

from seatrial.findings.aftermath import ENDED, MISSED, aftermath_last, without_aftermath
from seatrial.findings.catalogue import by_id


@pytest.mark.parametrize("missed", MISSED)
def test_who_is_missed_is_no_cause(missed: str) -> None:
    timeout, oom, killed = (by_id(id).finding() for id in (missed, "cuda-out-of-memory", "process-killed"))
    assert without_aftermath([timeout, oom]) == [oom]
    assert without_aftermath([timeout, killed]) == [killed]
    assert without_aftermath([timeout, killed, oom]) == [oom]
    assert without_aftermath([timeout]) == [timeout]
    assert aftermath_last([timeout, killed, oom]) == [oom, killed, timeout]


def test_a_warning_is_no_cause_either() -> None:
    timeout, notice = by_id("nccl-timeout").finding(), by_id("numpy-2-notice").finding()
    assert without_aftermath([notice, timeout]) == [notice, timeout]


def test_the_entries_are_there() -> None:
    assert all(by_id(id).symptoms for id in (*ENDED, *MISSED))

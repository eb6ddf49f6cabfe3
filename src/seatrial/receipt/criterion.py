"""Criterion: one question that a run is judged by, and the answer."""

from __future__ import annotations

from typing import Literal

from seatrial.receipt.record import Record

Verdict = Literal["pass", "fail", "not judged"]

#: What a verdict weighs: a criterion that nobody asked for is missed with a warning.
Weight = Literal["pass", "fail", "warning", "not judged"]


class Criterion(Record):
    """One criterion, judged.

    Attributes:
        evidence: one sentence: what the verdict rests on, or why there is none.
        expected, measured: the two sides in words, where it has two.
        asked: the run was asked for it: by ``--gpus``, [criteria], a time limit, ``--strict`` or the command itself.
            Else it is a default of seatrial's. None in receipts of before, which made no difference: there it counts.
    """

    id: str
    title: str
    verdict: Verdict
    evidence: str
    expected: str | None = None
    measured: str | None = None
    asked: bool | None = None

    @property
    def weight(self) -> Weight:
        """The verdict, for the run as a whole."""
        return "warning" if self.verdict == "fail" and self.asked is False else self.verdict

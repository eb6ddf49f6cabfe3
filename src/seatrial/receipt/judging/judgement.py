"""Judgement: a verdict and the sentence it rests on."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.receipt.model import Verdict


class Judgement(NamedTuple):
    """One criterion, judged; ``expected`` and ``measured`` are its two sides in words, where it has two."""

    verdict: Verdict
    evidence: str
    expected: str | None = None
    measured: str | None = None

"""The diagnosis of a run's training window, as its receipt keeps it."""

from __future__ import annotations

from seatrial.diagnosis.rules import diagnose
from seatrial.events import Sample, Step
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import AdviceRecord, DiagnosisRecord


def diagnose_case(case: Case) -> DiagnosisRecord | None:
    """What bounded the run; None without GPUs, of a server, or with too few samples in the training window."""
    window = case.evidence.window
    if not case.expected or window is None or case.plan.job.serve is not None:
        return None
    inside = [m for m in case.evidence.moments if window.start_s <= m.at_s <= window.end_s]
    samples, steps = (
        [{**m.keys, "t": m.at_s} for m in inside if m.keys.get("type") == kind.type] for kind in (Sample, Step)
    )
    found = diagnose(samples, steps, case.expected[0].name)
    if found is None:
        return None
    return DiagnosisRecord(
        cause=found.cause,
        words=found.words,
        tags=found.tags,
        evidence=found.evidence,
        advice=tuple(AdviceRecord(change=advice.change, gain=advice.gain) for advice in found.advice),
        mfu=found.mfu,
    )

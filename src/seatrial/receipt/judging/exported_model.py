"""Does an exported model agree with its original: the largest difference that the export program reported."""

from __future__ import annotations

from seatrial.receipt.formatting import figure
from seatrial.receipt.judging.judgement import Judgement
from seatrial.receipt.judging.judging_input import Case


def is_export(case: Case) -> bool:
    """Whether the run's target was the export program."""
    target = case.plan.job.target
    return target.kind == "recipe" and target.value == "export"


def judge_exported_model(case: Case) -> Judgement:
    """By its own word: it computes both sides in the container."""
    found, allowed = (case.evidence.steps.find(name) for name in ("largest_difference", "tolerance"))
    if found is None or allowed is None:
        return Judgement("fail", "the two models were not compared", "a comparison", None)
    difference, tolerance = found[1][-1][1], allowed[1][-1][1]
    return Judgement(
        "pass" if difference <= tolerance else "fail",
        f"largest difference {figure(difference)}, tolerance {figure(tolerance)}, as the export program measured",
        f"at most {figure(tolerance)}",
        figure(difference),
    )

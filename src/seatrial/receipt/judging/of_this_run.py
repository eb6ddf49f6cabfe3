"""Known failures in the output, as the run's own plan explains them: its arguments, its GPUs, its project."""

from __future__ import annotations

import shlex

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import Plan
from seatrial.receipt.judging.missing_module import about_the_project

#: What torch says where the script takes a GPU for granted.
_NEEDS_A_GPU = ("torch-cpu-only", "no-cuda-device")


def of_this_run(finding: Finding, plan: Plan) -> Finding:
    """The finding itself, or what is known better about it."""
    if finding.id in _NEEDS_A_GPU and plan.agent.gpu_mode != "required":
        return _without_a_gpu(finding)
    if finding.id == "arguments-missing":
        return _with_each_argument(finding, plan)
    return about_the_project(finding, plan)


def _without_a_gpu(finding: Finding) -> Finding:
    """No GPU was asked for, or none was there: nothing is wrong with the installed torch."""
    known = by_id("gpu-taken-for-granted")
    if any("deserialize" in line for line in finding.evidence):
        return known.finding(finding.evidence, fix='in the script: torch.load(…, map_location="cpu")')
    return known.finding(finding.evidence)


def _with_each_argument(finding: Finding, plan: Plan) -> Finding:
    """``a, -l/--lr`` are two arguments: a value of its own behind each option."""
    named = finding.message.partition("not given ")[2]
    names = [name.strip("'[] ").split("/")[-1].strip("' ") for name in named.split(",")]
    if not all(name and " " not in name for name in names):
        return finding
    given = [part for name in names for part in ([name, "VALUE"] if name.startswith("-") else [name.upper()])]
    words = shlex.split(plan.target_line)
    verb = [] if plan.job.tuning or plan.job.serve else ["run"]  # theirs is in the line
    command = shlex.join(["seatrial", *verb, *words, *([] if "--" in words else ["--"]), *given])
    fix = f"{command}   # or, to see them all: -- --help"
    return Finding(finding.id, finding.severity, finding.message, finding.cause, fix, finding.evidence)

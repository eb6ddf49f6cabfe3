"""Known failures in the output, as the run's own plan explains them: its arguments, its GPUs, its project."""

from __future__ import annotations

import re
import shlex

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import Plan
from seatrial.receipt.judging.missing_module import about_the_project
from seatrial.receipt.judging.pasteable import run_again

#: What torch says where the script takes a GPU for granted.
_NEEDS_A_GPU = ("torch-cpu-only", "no-cuda-device")

#: One of the arguments that argparse or Click names. argparse lists what may be chosen: ``{train,eval}``.
_ARGUMENT = re.compile(r"(?:\{[^}]*\}|[^,])+")
_CHOICES = re.compile(r"\{([^,{}]+)[^{}]*\}")


def of_this_run(finding: Finding, plan: Plan) -> Finding:
    """The finding itself, or what is known better about it."""
    if finding.id in _NEEDS_A_GPU and plan.agent.gpu_mode != "required":
        return _without_a_gpu(finding)
    if finding.id == "arguments-missing" and plan.job.serve is None:
        return _with_each_argument(finding, plan)
    return about_the_project(finding, plan)


def _without_a_gpu(finding: Finding) -> Finding:
    """No GPU was asked for, or none was there: nothing is wrong with the installed torch."""
    return by_id("gpu-taken-for-granted").finding(finding.evidence)


def _with_each_argument(finding: Finding, plan: Plan) -> Finding:
    """``a, -l/--lr`` are two arguments: a value of its own behind each option, and the first of several choices."""
    given: list[str] = []
    for named in _ARGUMENT.findall(finding.message.partition("not given ")[2]):
        if choices := _CHOICES.fullmatch(named.strip()):
            given.append(choices[1])
            continue
        name = named.strip("'[] ").split("/")[-1].strip("' ")
        if not name or re.search(r"[\s{}]", name):
            return finding
        given += [name, "VALUE"] if name.startswith("-") else [name.upper()]
    if not given:
        return finding
    words, arguments = run_again(plan)
    verb = [] if plan.job.tuning else ["run"]  # tune is in the line
    command = shlex.join(["seatrial", *verb, *words, *(arguments or ["--"]), *given])
    fix = f"{command}   # or, to see them all: -- --help"
    return Finding(finding.id, finding.severity, finding.message, finding.cause, fix, finding.evidence)

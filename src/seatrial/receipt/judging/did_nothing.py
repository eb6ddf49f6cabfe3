"""Ended with 0, but did nothing, or failed: by a script's last words, or by what it left running."""

from __future__ import annotations

import ast
import re

from seatrial.errors import SeatrialError
from seatrial.events import Signal
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import Plan
from seatrial.job.units import format_seconds
from seatrial.receipt.evidence.fields import items
from seatrial.receipt.evidence.output import Output
from seatrial.receipt.formatting import count, quote
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.saved_model import judge_saved_model
from seatrial.receipt.model import ExitCause
from seatrial.system.project_files import read_bytes

#: A script that ran longer, or said more, did something before it left. Importing torch from a cold disk takes half of
#: the first. Who skips a part often did the others.
MOST_S, MOST_LINES, MOST_LINES_OF_SKIPPING = 60.0, 20, 5

#: A script that only starts another process is done by then.
MOST_S_OF_STARTING = 5.0

#: Characters of a line that says nothing but that it leaves; what is missing stands in the line before.
_SHORT = 40

_LEAVES = re.compile(
    r"\b(exiting|aborting|quitting|terminating|bailing out|giving up|nothing to do|will exit"
    r"|cannot (run|continue|proceed))\b",
    re.IGNORECASE,
)
_SKIPS = re.compile(r"\b(skipped|skipping|skip)\b", re.IGNORECASE)
_LACKS = re.compile(
    r"\b(no|not|none|without|unable|cannot|can't|couldn't|could not|fail(ed|s)?|missing|insufficient|unavailable|needs?"
    r"|requires?|required|at least|only|fewer|nothing)\b",
    re.IGNORECASE,
)
#: Who says that it needs more GPUs than there are need not say that it leaves.
_DEMANDS = re.compile(
    r"\b(requires?|needs?|must have|(should|must) be run (on|with))\b"
    r".{0,40}?\b(at least|more than|minimum|multiple|[2-9]|two|an? )"
    r".{0,40}?\b(gpus?|cuda|devices?|accelerators?|ranks|processes)\b",
    re.IGNORECASE,
)
#: Who says so behind an exception has not gone on.
_GAVE_UP = re.compile(
    r"\b(fail(ed|s|ing)?|failure|abort(ed|ing)?|interrupted|crash(ed)?|gave up|giving up|exception|traceback"
    r"|errors? (occurred|above)|(due to|because of|with|by) an? error)\b",
    re.IGNORECASE,
)
_USAGE = re.compile(r"usage: \S", re.IGNORECASE)

#: What a user asks for who wants no work done.
_ASKS_FOR_WORDS = {"-h", "--help", "-help", "help", "--version", "-V", "--list", "--info", "--dry-run"}


def did_nothing(case: Case, cause: ExitCause) -> Finding | None:
    """The finding, or None. Each sign alone is honest: a short script, one that reports no step, the word "exiting".

    It takes a script that finished with 0 soon and with few words, of which the last say that something is missing
    and that it leaves, or how to call it; and that reported nothing, saved no model and computed on no GPU.
    """
    wall_s = case.measurements.wall_s
    if case.plan.job.serve is not None:
        return None
    if cause.id != "finished" or wall_s is None or wall_s > MOST_S or case.output.lines > MOST_LINES:
        return None
    if not case.output.lines and _has_no_code(case.plan):
        target = case.plan.job.target.value
        return by_id("did-nothing").finding(
            [f"{target} has no line of code"],
            cause="The script is empty, or has comments alone: perhaps it is not saved yet",
            fix="save it, then: seatrial run …",
        )
    if _ASKS_FOR_WORDS & set(case.plan.job.target.args):
        return None
    said = _farewell(case.output) or next((line for line in case.output.first_lines if _USAGE.match(line)), None)
    if said is None or _worked(case):
        return None
    known = by_id("did-nothing")
    evidence = [
        f"its last words: {quote(said)}",
        f"{format_seconds(wall_s)}, {count(case.output.lines, 'line')} of output, no step, no model"
        + (", no work on a GPU" if case.expected else ""),
    ]
    return known.finding(evidence)


def failed_quietly(case: Case, cause: ExitCause) -> Finding | None:
    """The finding for a target that printed an exception and ended with 0.

    Not for one that saved a model and had something else to say behind the exception: a plot or an upload that failed.
    """
    if case.plan.job.serve is not None or cause.id != "finished" or not case.output.ends_with_exception:
        return None
    last = case.output.after_stderr[-1:]
    if last and not _GAVE_UP.search(last[0]) and judge_saved_model(case).verdict == "pass":
        return None
    return by_id("exception-swallowed").finding([f"stderr ends with: {quote(case.output.exception or '')}"])


def went_to_background(case: Case, cause: ExitCause) -> Finding | None:
    """The finding for a target that ended as soon as it had started another process, and had done nothing itself."""
    wall_s = case.measurements.wall_s
    if cause.id != "finished" or wall_s is None or wall_s > MOST_S_OF_STARTING or _worked(case):
        return None
    ended = [items(told.keys.get("forwarded_to")) for told in case.evidence.all(Signal) if told.text("origin") == "end"]
    if not any(ended):
        return None
    left = count(max(map(len, ended)), "process")
    return by_id("went-to-background").finding([f"it ended after {format_seconds(wall_s)} and left {left}"])


def _has_no_code(plan: Plan) -> bool:
    """Whether the target is a script of the project without a statement, as it lies there now."""
    if plan.job.target.kind != "script":
        return False
    try:
        source = read_bytes(plan.job.project / plan.job.target.value, inside=plan.job.project)
        return not ast.parse(source).body
    except (OSError, SeatrialError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _farewell(output: Output) -> str | None:
    """The line, of the last ones, that says what is missing and that the script leaves."""
    skips = output.lines <= MOST_LINES_OF_SKIPPING
    before = ""
    for line in output.last_lines:
        leaves = _LEAVES.search(line) or (skips and _SKIPS.search(line))
        if _DEMANDS.search(line) or (leaves and _LACKS.search(line)):
            return line
        if leaves and len(line) <= _SHORT and _LACKS.search(before):
            return f"{before} {line}"
        before = line
    return None


def _worked(case: Case) -> bool:
    """It reported, saved or computed something."""
    used = (use.utilization_max_pct or use.sm_activity_mean_pct for use in case.measurements.gpus)
    return bool(case.evidence.steps.lines) or any(used) or judge_saved_model(case).verdict == "pass"

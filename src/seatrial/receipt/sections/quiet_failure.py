"""Runs that ended with exit code 0 and did not do their work: what their last words and their evidence show."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError, fallback
from seatrial.events import Signal
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.units import format_seconds
from seatrial.receipt.sections.criteria import judge_saved_model
from seatrial.receipt.values import count, items, quote
from seatrial.system.project_files import own_table

if TYPE_CHECKING:
    from seatrial.job.plan import Plan
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.logs import Output

#: A script that ran longer, or printed more, did something before it left. Importing torch from a cold disk takes half
#: of the first. A script that skips a part often did the others.
MOST_S, MOST_LINES, MOST_LINES_OF_SKIPPING = 60.0, 20, 5
#: A script that only starts another process is done by then.
MOST_S_OF_STARTING = 5.0
#: Characters of a line that only announces the exit; the reason is in the line before.
_SHORT = 40
#: Arguments of a user who wants no work done.
_ASKS_FOR_WORDS = {"-h", "--help", "-help", "help", "--version", "-V", "--list", "--info", "--dry-run"}


@cache
def _forms() -> SimpleNamespace:
    """Read the forms of last words, which only a run that finished needs."""
    forms = own_table(Path(__file__).with_suffix(".toml"))
    return SimpleNamespace(**{name: re.compile(form, re.IGNORECASE) for name, form in forms.items()})


def did_nothing(run: RunEvidence) -> Finding | None:
    """Return the finding for a script that finished with 0 and apparently did nothing, or None.

    Each sign alone is harmless: a short script, one that reports no step, the word "exiting". It takes a script that
    finished soon and with few lines, of which the last report a lack and an exit, or its usage; and that reported
    nothing, saved no model and computed on no GPU.
    """
    wall_s, output = run.measurements.wall_s, run.output
    if run.plan.job.serve is not None:
        return None
    if run.cause.id != "finished" or wall_s is None or wall_s > MOST_S or output.lines > MOST_LINES:
        return None
    known = by_id("did-nothing")
    if not output.lines and _has_no_code(run.plan):
        evidence = [f"{run.plan.job.target.value} has no line of code"]
        cause = "The script is empty or has only comments: perhaps it is not saved yet"
        return known.finding(evidence, cause=cause, fix="save it, then: seatrial run …")
    if _ASKS_FOR_WORDS & set(run.plan.job.target.args):
        return None
    last = _farewell(output) or next((line for line in output.first_lines if _forms().usage.match(line)), None)
    if last is None or _worked(run):
        return None
    nothing = f"{format_seconds(wall_s)}, {count(output.lines, 'line')} of output, no step, no model"
    nothing += ", no work on a GPU" if run.expected else ""
    return known.finding([f"its last words: {quote(last)}", nothing])


def failed_quietly(run: RunEvidence) -> Finding | None:
    """Return the finding for a target that printed an exception and ended with 0.

    It does not apply to one that saved a model and printed more behind the exception: a plot or an upload failed.
    """
    if run.plan.job.serve is not None or run.cause.id != "finished" or not run.output.ends_with_exception:
        return None
    last = run.output.after_stderr[-1:]
    if last and not _forms().gave_up.search(last[0]) and judge_saved_model(run).verdict == "pass":
        return None
    return by_id("exception-swallowed").finding([f"stderr ends with: {quote(run.output.exception or '')}"])


def went_to_background(run: RunEvidence) -> Finding | None:
    """Return the finding for a target that ended once it had started another process, and had done nothing itself."""
    wall_s = run.measurements.wall_s
    if run.cause.id != "finished" or wall_s is None or wall_s > MOST_S_OF_STARTING or _worked(run):
        return None
    signals = [moment for moment in run.evidence.all(Signal) if moment.text("origin") == "end"]
    most = max((len(items(moment.keys.get("forwarded_to"))) for moment in signals), default=0)
    if not most:
        return None
    ended = f"it ended after {format_seconds(wall_s)} and left {count(most, 'process')}"
    return by_id("went-to-background").finding([ended])


@fallback(False, on=(OSError, SeatrialError, SyntaxError, ValueError, RecursionError, MemoryError))
def _has_no_code(plan: Plan) -> bool:
    """Return whether the target is a script of the project without a statement, as it lies there now."""
    from seatrial.system.project_files import read_bytes

    if plan.job.target.kind != "script":
        return False
    return not ast.parse(read_bytes(plan.job.project / plan.job.target.value, inside=plan.job.project)).body


def _farewell(output: Output) -> str | None:
    """Return the line, of the last ones, that reports a lack and the script's exit."""
    forms, skips, before = _forms(), output.lines <= MOST_LINES_OF_SKIPPING, ""
    for line in output.last_lines:
        leaves = forms.leaves.search(line) or (skips and forms.skips.search(line))
        if forms.demands.search(line) or (leaves and forms.lacks.search(line)):
            return line
        if leaves and len(line) <= _SHORT and forms.lacks.search(before):
            return f"{before} {line}"
        before = line
    return None


def _worked(run: RunEvidence) -> bool:
    """Return whether it reported, saved or computed something."""
    used = (use.utilization_max_pct or use.sm_activity_mean_pct for use in run.measurements.gpus)
    stepped = bool(run.evidence.steps.lines or run.evidence.anatomy)
    return stepped or any(used) or judge_saved_model(run).verdict == "pass"

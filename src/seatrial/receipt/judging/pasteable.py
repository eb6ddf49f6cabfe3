"""A finding's fix as this run's user would type it: with its own target in place of … and its ID in place of RUN."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from seatrial.findings.finding import Finding
from seatrial.job.plan import Plan

#: ``seatrial run``, what stands before the target, and options behind it. What follows is a comment or another command.
_CALL = re.compile(
    r"\bseatrial (run|plan|shell)((?: (?![…#;|&])\S+)*) …((?: -\S+(?: (?![-…#;|&])\S+)?)*)(?=$|\s+#|\s*[;|&])"
)
_RUN = re.compile(r"\b(seatrial runs \w+) RUN\b")


def pasteable(finding: Finding, plan: Plan) -> Finding:
    """The finding with a fix to paste; one that names no command of ours stays as it is."""
    if finding.fix is None or "seatrial r" not in finding.fix:
        return finding
    fix = _CALL.sub(lambda call: _filled(call, plan), finding.fix)
    fix = _RUN.sub(lambda call: f"{call[1]} {plan.run_id}", fix)
    return Finding(finding.id, finding.severity, finding.message, finding.cause, fix, finding.evidence)


def _filled(call: re.Match[str], plan: Plan) -> str:
    return f"seatrial {call[1]}{call[2]} {with_options(plan, shlex.split(call[3]))}"


def with_options(plan: Plan, options: Sequence[str]) -> str:
    """The plan's target as one would type it, with more options in front of the target's own arguments."""
    target = shlex.split(plan.target_line)
    end = target.index("--") if "--" in target else len(target)
    return shlex.join([*target[:end], *options, *target[end:]])

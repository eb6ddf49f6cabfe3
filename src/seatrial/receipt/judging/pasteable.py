"""A finding's fix as this run's user would type it: with its own target in place of … and its ID in place of RUN."""

from __future__ import annotations

import re
import shlex

from seatrial.findings.finding import Finding
from seatrial.findings.own_words import with_own_words
from seatrial.job.plan import Plan

_RUN = re.compile(r"\b(seatrial runs \w+) RUN\b")

#: ``--gpus 1 ``, which stands behind the verb of a run that was typed as another: ``tune``.
_OPTIONS = r"((?:-\S+ (?:[^-\s]\S* )??)*)"


def pasteable(finding: Finding, plan: Plan) -> Finding:
    """The finding with a fix to paste; one that names no command of ours stays as it is."""
    if finding.fix is None or "seatrial " not in finding.fix:
        return finding
    words, arguments = run_again(plan)
    fix = with_own_words(finding.fix, words, arguments)
    if plan.job.serve is not None or plan.job.target.typed:
        fix = re.sub(rf"\bseatrial run {_OPTIONS}{re.escape(words[0])} ", rf"seatrial {words[0]} \1", fix)
    fix = _RUN.sub(lambda call: f"{call[1]} {plan.run_id}", fix)
    return Finding(finding.id, finding.severity, finding.message, finding.cause, fix, finding.evidence)


def run_again(plan: Plan) -> tuple[list[str], list[str]]:
    """What to type behind ``seatrial run`` for it again, with the place and the GPUs as they were asked for.

    Returns:
        (the words before ``--``, ``--`` and what is behind it). Without ``--env``: receipts are passed on, and a value
        may be private.
    """
    words = shlex.split(plan.target_line)
    end = words.index("--") if "--" in words else len(words)
    before, job = words[:end], plan.job
    if job.serve is None and not job.target.typed:  # in what was typed its options are
        before += ["--on", job.backend] if job.backend != "auto" else []
        before += ["--gpus", str(job.gpus)] if job.gpus.kind != "auto" else []
    return before, words[end:]

"""The kernel's OOM killer ended the target: the limit to run it with next."""

from __future__ import annotations

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.units import format_bytes
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import ExitCause

#: Other findings that say it, with advice of their own.
_SAY_IT = {"host-out-of-memory", "k8s-oom-killed"}


def out_of_memory(case: Case, cause: ExitCause) -> Finding | None:
    """The finding for a target that had more memory in mind than its limit, or the machine, gave it."""
    told = (*case.evidence.findings, *case.output.findings)
    if cause.id != "host-oom" or any(finding.id in _SAY_IT for finding in told):
        return None
    limit = case.measurements.memory_limit_bytes
    known = by_id("host-out-of-memory")
    if case.plan.on_the_host or not limit:
        return known.finding(
            [cause.words],
            cause="The machine's memory is too small for the data and its workers",
            fix="free -h   # then fewer DataLoader workers, or read the data in chunks",
        )
    twice = format_bytes(2 * limit).replace(" ", "")
    return known.finding(
        [cause.words],
        cause=f"The limit of {format_bytes(limit)} is too small for the data and its workers",
        fix=f"seatrial run --memory {twice} …   # or fewer DataLoader workers, or read the data in chunks",
    )

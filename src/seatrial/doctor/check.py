"""Check: one link of the chain that is looked at, and Verdict: what was seen of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.doctor.facts.machine import Machine
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding

#: ok: healthy. warning: works, and will not always. broken: the chain ends here. unknown: could not be looked at, so
#: nothing is claimed. skipped: does not apply to this machine. blocked: behind a broken link, not looked at.
Status = Literal["ok", "warning", "broken", "unknown", "skipped", "blocked"]


@dataclass(frozen=True)
class Verdict:
    """What was seen of one link.

    Attributes:
        line: one sentence for the report, without a period.
        findings: of the catalogue; () for a healthy link.
    """

    status: Status
    line: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Check:
    """One link.

    Attributes:
        id: ``layer.name``, stable.
        title: what it makes sure of, in a few words.
        finds: IDs of the catalogue's entries that it can report.
        look: looks at the machine. May raise: a crash is a finding of its own.
        needs: IDs of checks, and names of layers, without which it can say nothing.
        timeout_s: after which it is given up; commands that it runs have their own, shorter ones.
    """

    id: str
    title: str
    finds: tuple[str, ...]
    look: Callable[[Machine], Verdict]
    needs: tuple[str, ...] = ()
    timeout_s: float = 6.0

    @property
    def layer(self) -> str:
        return self.id.partition(".")[0]


def ok(line: str) -> Verdict:
    return Verdict("ok", line)


def skipped(line: str) -> Verdict:
    return Verdict("skipped", line)


def unknown(line: str) -> Verdict:
    """``line`` says what could not be seen, and what that leaves open."""
    return Verdict("unknown", line)


def found(
    id: str,
    evidence: Sequence[str] = (),
    *,
    message: str | None = None,
    cause: str | None = None,
    fix: str | None = None,
    severity: str | None = None,
) -> Verdict:
    """A verdict from the catalogue's entry, with what is known better here. Errors break the chain."""
    finding = by_id(id).finding(evidence, severity=severity, message=message, cause=cause, fix=fix)
    return of_finding(finding)


def of_finding(finding: Finding) -> Verdict:
    status: Status = {"error": "broken", "warning": "warning", "info": "ok"}[finding.severity]  # type: ignore[assignment]
    return Verdict(status, finding.message, (finding,))


def worst(verdicts: Sequence[Verdict], healthy: str) -> Verdict:
    """Several verdicts about one link as one; ``healthy`` is the line when none of them has anything to say."""
    told = [verdict for verdict in verdicts if verdict.status not in ("ok", "skipped") or verdict.findings]
    if not told:
        return ok(healthy)
    rank = ("broken", "warning", "unknown", "ok")
    told.sort(key=lambda verdict: rank.index(verdict.status))
    return Verdict(told[0].status, told[0].line, tuple(finding for verdict in told for finding in verdict.findings))

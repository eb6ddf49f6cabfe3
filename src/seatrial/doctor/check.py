"""Check: one link of the chain; Verdict: its result; Layer: the checks of one part of the machine, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding

if TYPE_CHECKING:
    from seatrial.doctor.machine import Machine

#: ok: healthy. warning: works, but not always. broken: the chain ends here. unknown: could not be examined, so nothing
#: is claimed. skipped: does not apply to this machine. blocked: not examined, as an earlier link is broken.
Status = Literal["ok", "warning", "broken", "unknown", "skipped", "blocked"]


@dataclass(frozen=True)
class Verdict:
    """The result of one check: a sentence without a period, and findings of the catalogue; () for a healthy link."""

    status: Status
    line: str
    findings: tuple[Finding, ...] = ()


Look = Callable[["Machine"], Verdict]


@dataclass(frozen=True)
class Check:
    """Holds one link of the chain.

    Attributes:
        id: ``layer.name``, stable. title: the condition that it verifies, in a few words.
        finds: IDs of the catalogue's entries that it can report.
        look: examines the machine. May raise: a crash is a finding of its own.
        needs: IDs of checks without which it has no result.
        timeout_s: after which it is given up; commands that it runs have their own, shorter ones.
    """

    id: str
    title: str
    finds: tuple[str, ...]
    look: Look
    needs: tuple[str, ...] = ()
    timeout_s: float = 6.0

    @property
    def layer(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class Layer:
    """Checks of one part of the machine; the decorator ``check`` adds one.

    ``needs``: of each check that names none itself, IDs separated by spaces. ``skips``: called before each check;
    returns the verdict where the layer does not apply, else None.
    """

    name: str
    title: str
    checks: list[Check] = field(default_factory=list)
    needs: str = ""
    skips: Callable[[Machine], Verdict | None] | None = None

    def check(
        self,
        name: str,
        title: str,
        finds: str,
        *,
        needs: str | None = None,
        skips: bool = True,
        timeout_s: float = Check.timeout_s,
    ) -> Callable[[Look], Look]:
        """Make a function the layer's next check. ``finds`` and ``needs``: IDs separated by spaces."""

        def add(look: Look) -> Look:
            skip = self.skips if skips else None
            guarded: Look = look if skip is None else lambda machine: skip(machine) or look(machine)
            needed = tuple((self.needs if needs is None else needs).split())
            self.checks.append(Check(f"{self.name}.{name}", title, tuple(finds.split()), guarded, needed, timeout_s))
            return look

        return add


def ok(line: str) -> Verdict:
    return Verdict("ok", line)


def skipped(line: str) -> Verdict:
    return Verdict("skipped", line)


def unknown(line: str) -> Verdict:
    """Return a verdict with ``line``: what could not be examined, and what that leaves open."""
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
    """Make a verdict from the catalogue's entry, with what is known better here. Errors break the chain."""
    return of_finding(by_id(id).finding(evidence, severity=severity, message=message, cause=cause, fix=fix))


def of_finding(finding: Finding) -> Verdict:
    status: Status = {"error": "broken", "warning": "warning", "info": "ok"}[finding.severity]  # type: ignore[assignment]
    return Verdict(status, finding.message, (finding,))


def worst(verdicts: Sequence[Verdict], healthy: str) -> Verdict:
    """Join verdicts on one link; ``healthy`` is the line if none of them has a problem or a finding."""
    rank = ("broken", "warning", "unknown", "ok")
    problems = [verdict for verdict in verdicts if verdict.status not in ("ok", "skipped") or verdict.findings]
    problems.sort(key=lambda verdict: rank.index(verdict.status))
    if not problems:
        return ok(healthy)
    findings = tuple(finding for verdict in problems for finding in verdict.findings)
    return Verdict(problems[0].status, problems[0].line, findings)

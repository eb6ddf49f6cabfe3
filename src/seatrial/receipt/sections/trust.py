"""The value of the evidence: completeness, who could have altered it, and whether the host saw the same."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from pydantic import Field

from seatrial.events import AgentFinished, AgentStarted, AgentSummary, ReportRefused
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.receipt.section import Record, Section
from seatrial.receipt.values import count, grouped, items, mapping, short_uuid, whole

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Evidence, RunEvidence

#: A contradiction takes this many checks of the host without any process on a GPU, and samples of the agent with work
#: on it: a context can come and go between two checks.
MIN_LOOKS = 5
#: A digest; sixteen digits are shown, like those of the chain.
_SHA256 = re.compile(r"(sha256:[0-9a-f]{16})[0-9a-f]*")
#: Beginning of the warning about evidence that could be altered.
ALTERABLE = "Evidence could be altered by the target: "
#: Exit codes of a container whose PID 1 was ended from outside: it could not give the engine its own.
_KILLED = (137, 143)


class Seal(Record):
    """The value of the evidence under the receipt.

    Attributes:
        lines, digest: of events.jsonl when it was judged; ``seatrial runs verify`` compares. digest: None while the run
            goes on, or if the chain is broken (``broken_at``: the first line that does not hold, from 1).
        missing: numbered lines of the agent that never arrived.
        interpreter: what the agent ran on, with its digest; None where that was the image's or this machine's Python.
        alterable: why the target could have altered the evidence; None if it could not.
        refused: type of evidence → lines of the target that posed as it.
        witnessed: observations of the host's own driver, in words; None if it did not look.
        unverified_mounts: why mounts were not compared with what the host had opened; None if they were.
    """

    lines: int
    digest: str | None = None
    broken_at: int | None = None
    missing: int = 0
    interpreter: str | None = None
    alterable: str | None = None
    refused: dict[str, int] = Field(default_factory=dict)
    witnessed: str | None = None
    unverified_mounts: str | None = None


class Trust(Section):
    """The seal. Its row is part of What ran, its findings are first among the findings."""

    def read(self, run: RunEvidence) -> dict[str, Any]:
        evidence, chain = run.evidence, run.chain
        witness = evidence.witness.items()
        seen = [f"{short_uuid(uuid)} in {each.ours} of {each.looks} checks" for uuid, each in witness]
        seal = Seal(
            lines=chain.lines if chain else len(evidence.moments),
            digest=chain.digest if chain and chain.broken_at is None else None,
            broken_at=chain.broken_at if chain else None,
            missing=evidence.missing_lines,
            interpreter=run.plan.interpreter,
            alterable=alterable(run),
            refused=_refused(evidence),
            witnessed="; ".join(seen) or None,
            unverified_mounts=unverified_mounts(run),
        )
        return {"seal": seal}


def evidence_in_words(seal: Seal) -> str:
    """Return the amount of evidence and its value."""
    chained = f"chained, digest {seal.digest[:16]}" if seal.digest else "still open"
    parts = [count(seal.lines, "line"), f"broken at line {seal.broken_at}" if seal.broken_at else chained]
    parts += [f"{seal.missing} missing"] if seal.missing else []
    parts += [f"could be altered by the target: {seal.alterable}" if seal.alterable else "not accessible to the target"]
    parts += ["the agent ran on " + _SHA256.sub(r"\1", seal.interpreter)] if seal.interpreter else []
    parts += [f"mounts not verified: {seal.unverified_mounts}"] if seal.unverified_mounts else []
    parts += [f"the host observed the run on {seal.witnessed}"] if seal.witnessed else []
    return "; ".join(parts)


def alterable(run: RunEvidence) -> str | None:
    """Return why the target could have altered the evidence, or None if it could not."""
    if not (started := run.evidence.all(AgentStarted)):
        return None
    if any("alterable" not in moment.keys for moment in started):
        return "the agent's version did not yet isolate itself"
    return next((why for moment in started if (why := moment.text("alterable"))), None)


def unverified_mounts(run: RunEvidence) -> str | None:
    """Return why mounts were not compared with what the host had opened for them, or None if they were."""
    return next((why for each in run.evidence.all(AgentStarted) if (why := each.text("unverified_mounts"))), None)


def lost_output_lines(run: RunEvidence) -> int:
    """Return the lines of output that pods' agents passed on and no log has; a pod without a summary is left out."""
    passed_on = sum(
        whole(n) or 0 for moment in run.evidence.all(AgentSummary) for n in items(moment.keys.get("output_lines"))
    )
    return max(0, passed_on - run.output.line_ends)


def _refused(evidence: Evidence) -> dict[str, int]:
    """Return type of evidence → reports of the target that posed as it."""
    found = Counter[str]()
    for moments in grouped((each.number("node"), each) for each in evidence.all(ReportRefused)).values():
        totals = [moment for moment in moments if moment.keys.get("total") is True]
        for moment in totals[-1:] or moments:
            for claim, number in mapping(moment.keys.get("claims")).items():
                found[str(claim)[:40]] += max(0, whole(number) or 0)
    return dict(found)


def contradictions(run: RunEvidence) -> list[str]:
    """Return a sentence for each conflict of the agent's evidence with its chain or with the host's observations."""
    found = []
    if run.chain is not None and run.chain.broken_at is not None:
        found.append(f"line {run.chain.broken_at} of events.jsonl was changed after it was written")
    found += _exit_codes(run)
    for uuid, seen in run.evidence.witness.items():
        readings = [sample.gpus.get(uuid, {}) for sample in run.evidence.samples]
        busy = sum(max(each.get("utilization_pct", 0.0), each.get("sm_activity_pct", 0.0)) > 0 for each in readings)
        if uuid in run.evidence.contexts and not seen.ours and not seen.others and min(seen.looks, busy) >= MIN_LOOKS:
            work = f"the agent reported work on {short_uuid(uuid)} in {busy} samples"
            found.append(f"{work}; the host's driver listed no process there in {seen.looks} checks")
    return found


def _exit_codes(run: RunEvidence) -> list[str]:
    """Compare the exit code that a container's PID 1 reported with the engine's."""
    state, finished = run.state, run.evidence.last(AgentFinished)
    if state is None or run.plan.container is None or finished is None:
        return []
    reported = whole(finished.keys.get("exit_code"))
    agrees = state.exit_code in (None, reported, *_KILLED)
    if state.status != "exited" or reported is None or state.oom_killed or agrees:
        return []
    return [f"the agent reported exit code {reported}; {run.plan.backend} saw {state.exit_code}"]


def refused_finding(run: RunEvidence) -> Finding | None:
    """Return the finding of lines of the target that pose as the agent's, or None."""
    if not (claims := _refused(run.evidence)):
        return None
    values = {"lines": count(sum(claims.values()), "line"), "claims": ", ".join(sorted(claims))}
    return by_id("forged-evidence").finding([f"{claim}: {n}" for claim, n in sorted(claims.items())], values=values)

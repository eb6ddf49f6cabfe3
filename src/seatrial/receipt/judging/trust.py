"""What the evidence is worth: whether it is whole, who could have altered it, and whether the host saw the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from seatrial.events import AgentFinished, AgentStarted, AgentSummary, Chain, HostWitness, ReportRefused
from seatrial.findings.finding import Finding
from seatrial.job.mount import changeable
from seatrial.job.plan import Plan
from seatrial.receipt.evidence.facts import Evidence, Moment
from seatrial.receipt.evidence.fields import items, mapping, whole
from seatrial.receipt.formatting import count, short_uuid
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import Seal

#: Looks of the host that found no process at all on a GPU, and samples of the agent that say it computed, that it takes
#: to call one of them false: a context can come and go between two looks.
MIN_LOOKS = 5

#: Where an image keeps programs, libraries and what steers the loader. Source: ld.so(8); hier(7).
_SYSTEM = re.compile(r"(/usr(/local)?)?(/(s?bin|lib[^/]*)(/.*)?)?|/etc|/etc/ld\.so\.[^/]*(/.*)?")

#: Exit codes of a container whose PID 1 was ended from outside: it could not tell the engine its own.
_KILLED = (137, 143)


def make_seal(case: Case, chain: Chain | None) -> Seal:
    """The receipt's account of its evidence.

    Args:
        chain: followed to the end of events.jsonl; None for a receipt of a run that goes on.
    """
    evidence = case.evidence
    return Seal(
        lines=chain.lines if chain else len(evidence.moments),
        digest=chain.digest if chain and chain.broken_at is None else None,
        broken_at=chain.broken_at if chain else None,
        missing=missing_lines(evidence),
        alterable=alterable(case),
        refused=refused(evidence),
        witnessed=_witnessed(evidence),
    )


def alterable(case: Case) -> str | None:
    """Why the target could have altered the evidence, or None where it could not."""
    if (planted := _planted(case.plan)) is not None:
        return planted
    started = case.evidence.all(AgentStarted)
    if not started:
        return None
    if any("alterable" not in moment.keys for moment in started):
        return "the agent's version did not yet isolate itself"
    return next((why for moment in started if (why := moment.text("alterable"))), None)


def _planted(plan: Plan) -> str | None:
    """A mount of the user's over what the agent runs on, which the target can change: its word is worth nothing."""
    if plan.container is None or plan.image is None or plan.image.python is None:
        return None
    prefix = PurePosixPath(plan.image.python).parent.parent
    wanted = {PurePosixPath(mount.target) for mount in plan.job.mounts}
    for mount in plan.container.mounts:
        target = PurePosixPath(mount.target)
        if target not in wanted or not changeable(mount, plan.container.mounts):
            continue
        own = prefix != PurePosixPath("/") and (target.is_relative_to(prefix) or prefix.is_relative_to(target))
        if own or _SYSTEM.fullmatch(str(target)):
            return f"{target} in the container, which runs the agent, is a mount"
    return None


def missing_lines(evidence: Evidence) -> int:
    """Numbered lines of the agents that never arrived."""
    last: dict[float | None, int] = {}
    missing = 0
    for moment in evidence.moments:
        seq, node = whole(moment.keys.get("_seq")), moment.number("node")
        if seq is None:
            continue
        if moment.keys.get("type") == AgentStarted.type:
            last[node] = 0
        before = last.get(node, 0)
        missing += max(0, seq - before - 1)
        last[node] = max(seq, before)
    return missing


def lost_output_lines(case: Case) -> int:
    """Lines of output that pods' agents passed on and no log has. Of a pod that told no summary nothing is known."""
    told = sum(
        whole(n) or 0 for moment in case.evidence.all(AgentSummary) for n in items(moment.keys.get("output_lines"))
    )
    return max(0, told - case.output.line_ends)


def refused(evidence: Evidence) -> dict[str, int]:
    """Type of evidence → reports of the target that posed as it."""
    told: dict[float | None, list[Moment]] = {}
    for moment in evidence.all(ReportRefused):
        told.setdefault(moment.number("node"), []).append(moment)
    found: dict[str, int] = {}
    for moments in told.values():
        totals = [moment for moment in moments if moment.keys.get("total") is True]
        for moment in totals[-1:] or moments:
            for claim, number in mapping(moment.keys.get("claims")).items():
                found[str(claim)[:40]] = found.get(str(claim)[:40], 0) + max(0, whole(number) or 0)
    return found


def contradictions(case: Case, chain: Chain | None) -> list[str]:
    """Where what the host saw, or the chain of the evidence, speaks against what the agent told; a sentence each."""
    found = []
    if chain is not None and chain.broken_at is not None:
        found.append(f"line {chain.broken_at} of events.jsonl was changed after it was written")
    found += _exit_codes(case)
    for uuid, (looks, ours, others) in witness(case.evidence).items():
        busy = sum(_computes(sample.gpus.get(uuid, {})) for sample in case.evidence.samples)
        if uuid in case.evidence.contexts and not ours and not others and min(looks, busy) >= MIN_LOOKS:
            found.append(
                f"the agent reported work on {short_uuid(uuid)} in {busy} samples; the host's driver listed no process "
                f"there in {looks} checks"
            )
    return found


def _computes(reading: Mapping[str, float]) -> bool:
    return any(reading.get(key, 0.0) > 0 for key in ("utilization_pct", "sm_activity_pct"))


def contradiction_finding(sentences: Sequence[str]) -> Finding:
    """The evidence cannot be what happened."""
    return Finding(
        "evidence-contradicted",
        "error",
        "The evidence is inconsistent, so it proves nothing",
        "It was edited, or the process that wrote it was tampered with",
        "seatrial runs verify RUN",
        list(sentences),
    )


def refused_finding(claims: dict[str, int]) -> Finding:
    """The target has written lines that pose as the agent's."""
    total = sum(claims.values())
    kinds = ", ".join(sorted(claims))
    return Finding(
        "forged-evidence",
        "warning",
        f"The target wrote {count(total, 'line')} to $SEATRIAL_EVENTS that it must not report: {kinds}",
        "A script may report metrics and steps; contract, use, samples and exits come only from the agent and the host",
        'print(json.dumps({"step": step, "loss": loss}), file=events)',
        [f"{claim}: {number}" for claim, number in sorted(claims.items())],
    )


def _exit_codes(case: Case) -> list[str]:
    """Of a container: PID 1's own words against what the engine saw of it."""
    state, finished = case.state, case.evidence.last(AgentFinished)
    if state is None or case.plan.container is None or case.plan.companion is not None or finished is None:
        return []
    told = whole(finished.keys.get("exit_code"))
    if state.status != "exited" or state.exit_code is None or told is None or state.oom_killed:
        return []
    if state.exit_code in (told, *_KILLED):
        return []
    return [f"the agent reported exit code {told}; {case.plan.backend} saw {state.exit_code}"]


def witness(evidence: Evidence) -> dict[str, tuple[int, int, int]]:
    """UUID → looks of the host, with a process of the run's there, with only others'."""
    found: dict[str, tuple[int, int, int]] = {}
    for moment in evidence.all(HostWitness):
        for uuid, seen in mapping(moment.keys.get("gpus")).items():
            counts = [whole(mapping(seen).get(key)) or 0 for key in ("looks", "ours", "others")]
            before = found.get(str(uuid), (0, 0, 0))
            found[str(uuid)] = (before[0] + counts[0], before[1] + counts[1], before[2] + counts[2])
    return found


def _witnessed(evidence: Evidence) -> str | None:
    """What the host saw of the run's use of its GPUs, in words; None where it did not look."""
    seen = witness(evidence)
    if not seen:
        return None
    return "; ".join(f"{short_uuid(uuid)} in {ours} of {looks} checks" for uuid, (looks, ours, _) in seen.items())

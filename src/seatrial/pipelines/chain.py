"""The chained receipt: what each member of a group did, read and wrote, and what it took, from records of this machine.

A link of the chain is a digest: what one member wrote is what another read, or the chain says that it is broken there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.pipelines.group import GOOD, PAGES, Group, Member
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore

SCHEMA_VERSION = 1

#: Findings of a run that are shown here; its own receipt has all.
_MOST_FINDINGS = 3


@dataclass(frozen=True)
class Piece:
    """A file or folder that was read or written.

    Attributes:
        of: member that wrote it, for what was read; None: nobody in the group.
        intact: what was read is what that member wrote; None: it cannot be said.
    """

    path: str
    digest: str
    bytes: int
    files: int
    of: str | None = None
    intact: bool | None = None


@dataclass(frozen=True)
class Link:
    """One member.

    Attributes:
        verdict: of its run's receipt in a few words; or why there is none.
        level: of its run's outcome; None without a receipt.
        seconds, gpu_seconds: of its target; an unchanged one took them when it ran.
        started_s: since the group's start; None: it did not start here.
        receipt: digest of its run's receipt.
    """

    name: str
    role: str
    target: str
    state: str
    verdict: str
    needs: tuple[str, ...] = ()
    run: str | None = None
    exit_code: int | None = None
    gpus: int = 0
    seconds: float | None = None
    gpu_seconds: float = 0.0
    started_s: float | None = None
    receipt: str | None = None
    findings: tuple[str, ...] = ()
    level: str | None = None
    read: tuple[Piece, ...] = ()
    wrote: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Chain:
    """All of a group.

    Attributes:
        wall_s: from the group's start to its last member's end. gpu_s: of what ran now; an unchanged member cost none.
    """

    id: str
    kind: str
    name: str | None
    project: str
    state: str
    created_at: str
    wall_s: float | None
    gpu_s: float
    links: tuple[Link, ...]
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def passed(self) -> bool:
        """Every member came to a good end and met what was asked of it, and no link of the chain is broken."""
        return self.state == "done" and not self.broken and not any(map(missed_criteria, self.links))

    @property
    def broken(self) -> list[str]:
        """``train read processed, which is not what preprocess wrote``."""
        return [
            f"{link.name} read {piece.path}, which is not what {piece.of} wrote"
            for link in self.links
            for piece in link.read
            if piece.intact is False
        ]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "passed": self.passed}


def chain_of(group: Group, store: RunStore) -> Chain:
    """The chain of a group as its records are now."""
    written = {
        piece["path"]: (member.name, piece["digest"]) for member in group.members for piece in _told(member, "wrote")
    }
    links = tuple(_link(group, member, store, written) for member in group.members)
    ends = [member.ended_at for member in group.members if member.ended_at is not None]
    return Chain(
        id=group.id,
        kind=group.kind,
        name=group.name,
        project=store.project.name,
        state=group.state,
        created_at=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(group.created_at)),
        wall_s=max(0.0, max(ends) - group.created_at) if ends else None,
        gpu_s=sum(link.gpu_seconds for link in links if link.state != "unchanged"),
        links=links,
    )


def _link(group: Group, member: Member, store: RunStore, written: Mapping[str, tuple[str, str]]) -> Link:
    run = store.run(member.run) if member.run is not None else None
    summary = (run.summary() if run is not None else None) or {}
    seconds = summary.get("seconds", member.details.get("seconds"))
    if seconds is None and member.started_at is not None and member.ended_at is not None:
        seconds = member.ended_at - member.started_at
    verdict, level, findings = _verdict(member, run)
    gpus = int(summary.get("gpus") or member.gpus)
    return Link(
        name=member.name,
        role=member.role,
        target=member.target,
        state=member.state,
        verdict=verdict,
        needs=member.needs,
        run=member.run,
        exit_code=member.exit_code,
        gpus=gpus,
        seconds=seconds,
        gpu_seconds=(seconds or 0.0) * gpus,
        started_s=None if member.started_at is None else max(0.0, member.started_at - group.created_at),
        receipt=f"sha256:{summary['receipt']}" if summary.get("receipt") else None,
        findings=findings,
        level=level,
        read=tuple(_piece(piece, written) for piece in _told(member, "read")),
        wrote=tuple(_piece(piece, {}) for piece in _told(member, "wrote")),
    )


def _verdict(member: Member, run: Run | None) -> tuple[str, str | None, tuple[str, ...]]:
    """(words, level, findings) of a member's own receipt, or of its state."""
    from seatrial.receipt.store import load

    if run is None or member.state in ("skipped", "waiting"):
        return member.why or member.state, None, ()
    try:
        receipt = load(run.folder)
    except (SeatrialError, OSError, ValueError):
        return member.why or member.state, None, ()
    findings = tuple(finding.message for finding in receipt.findings[:_MOST_FINDINGS])
    if member.state == "failed" and receipt.exit_code == 0:  # the run is good, and the group is not satisfied
        return member.why, "bad", findings
    words = receipt.outcome.sentence
    told = f"unchanged ({member.why}); {words}" if member.state == "unchanged" else words
    return told, receipt.outcome.level, findings


def _told(member: Member, key: str) -> list[dict[str, Any]]:
    told = member.details.get(key)
    return [piece for piece in told if isinstance(piece, dict) and "path" in piece] if isinstance(told, list) else []


def _piece(told: Mapping[str, Any], written: Mapping[str, tuple[str, str]]) -> Piece:
    of, digest = written.get(told["path"], (None, None))
    return Piece(
        path=str(told["path"]),
        digest=str(told.get("digest", "")),
        bytes=int(told.get("bytes", 0)),
        files=int(told.get("files", 0)),
        of=of,
        intact=None if of is None else digest == told.get("digest"),
    )


def counts(chain: Chain) -> str:
    """``3 done, 1 unchanged; criteria not met: train``."""
    states = [link.state for link in chain.links]
    told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    unmet = [link.name for link in chain.links if missed_criteria(link)]
    return f"{told}; criteria not met: {', '.join(unmet)}" if unmet else told


def missed_criteria(link: Link) -> bool:
    """It ended well, without what was asked of it."""
    return link.state in GOOD and link.level == "bad"


def is_good(link: Link) -> bool:
    """It came to a good end, and met what was asked of it."""
    return link.state in GOOD and not missed_criteria(link)


def page_folder(project: Path, group_id: str) -> Path:
    """Where people find a group's receipt."""
    return project.joinpath(*PAGES, group_id)

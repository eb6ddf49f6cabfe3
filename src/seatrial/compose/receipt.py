"""Write the chained receipt: each member's verdict, and the group's time; HTML and JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from seatrial.compose.console import Console
from seatrial.compose.group import KIND, PAGES, Group, Member
from seatrial.errors import SeatrialError, fallback
from seatrial.job.units import format_seconds
from seatrial.runs.run import SUMMARY, Run, Summary
from seatrial.runs.store import RunStore
from seatrial.system import nofollow
from seatrial.system.host import Host
from seatrial.system.names import Names, names_of
from seatrial.system.text import as_typed

SCHEMA_VERSION = 2
#: Findings of a run that are shown here; its own receipt has all.
_MOST_FINDINGS = 3

_MARKS = {"done": "[✓]", "failed": "[✗]", "stopped": "[✗]"}


@dataclass(frozen=True)
class Link:
    """Holds one member of the chain.

    ``verdict``: of its run's receipt in a few words; or why there is none. ``level``: None without a receipt.
    ``seconds``, ``gpu_seconds``: of its target. ``started_s``: since the group's start, or None. ``receipt``: its
    digest.
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

    @property
    def missed_criteria(self) -> bool:
        """Return True if the member ended well and missed what its run requires."""
        return self.state == "done" and self.level == "bad"


@dataclass(frozen=True)
class ServiceChain:
    """All members of a group; ``wall_s``: from its start to its last member's end."""

    id: str
    name: str | None
    project: str
    state: str
    created_at: str
    wall_s: float | None
    gpu_s: float
    links: tuple[Link, ...]
    kind: str = KIND
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def passed(self) -> bool:
        """Return True if every member ended well and met its criteria."""
        return self.state == "done" and not any(link.missed_criteria for link in self.links)

    @property
    def headline(self) -> str:
        """Return ``churn: 3 services``."""
        count = len(self.links)
        return f"{self.name or self.project}: {count} service{'s' * (count != 1)}"

    @property
    def counts(self) -> str:
        """Return ``3 done; criteria not met: train``."""
        states = [link.state for link in self.links]
        counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        unmet = [link.name for link in self.links if link.missed_criteria]
        return f"{counted}; criteria not met: {', '.join(unmet)}" if unmet else counted

    @property
    def summary(self) -> str:
        """Return ``done in 15.7 s; 3 done``."""
        took = f" in {format_seconds(self.wall_s)}" if self.wall_s is not None else ""
        gpu = f", {format_seconds(self.gpu_s)} of GPU time" if self.gpu_s else ""
        return f"{self.state}{took}{gpu}; {self.counts}"

    def as_dict(self) -> dict[str, Any]:
        """Return the receipt as the object that JSON has."""
        return {**asdict(self), "passed": self.passed}

    def without_names(self, names: Names) -> ServiceChain:
        """Return the chain without names of people and machines in what a target, a person or a path contains."""
        links = []
        for link in self.links:
            target, verdict = names.text(link.target), names.text(link.verdict)
            findings = tuple(map(names.text, link.findings))
            links.append(replace(link, target=target, verdict=verdict, findings=findings))
        return replace(self, project=names.text(self.project), links=tuple(links))


def chain_of(group: Group, store: RunStore) -> ServiceChain:
    """Return the chain of a group from its records as they are now."""
    links = tuple(_link(group, member, store) for member in group.members)
    ends = [member.ended_at for member in group.members if member.ended_at is not None]
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(group.created_at))
    wall_s = max(0.0, max(ends) - group.created_at) if ends else None
    gpu_s = sum(link.gpu_seconds for link in links)
    return ServiceChain(group.id, group.name, store.project.name, group.state, created, wall_s, gpu_s, links)


def _link(group: Group, member: Member, store: RunStore) -> Link:
    run = store.run(member.run) if member.run is not None else None
    summary = run.records.read(SUMMARY, Summary) if run is not None else None
    seconds = summary.seconds if summary else None
    if seconds is None and member.started_at is not None and member.ended_at is not None:
        seconds = member.ended_at - member.started_at
    verdict, level, findings = _verdict(member, run)
    gpus = (summary.gpus if summary else 0) or member.gpus
    own = ("name", "role", "target", "state", "needs", "run", "exit_code")
    return Link(
        **{name: getattr(member, name) for name in own},
        verdict=verdict,
        gpus=gpus,
        seconds=seconds,
        gpu_seconds=(seconds or 0.0) * gpus,
        started_s=None if member.started_at is None else max(0.0, member.started_at - group.created_at),
        receipt=f"sha256:{summary.receipt}" if summary and summary.receipt else None,
        findings=findings,
        level=level,
    )


def _verdict(member: Member, run: Run | None) -> tuple[str, str | None, tuple[str, ...]]:
    """Return (words, level, findings) of a member's own receipt, or of its state."""
    from seatrial.receipt.model import load

    read = fallback(None, on=(SeatrialError, OSError, ValueError))(load)
    receipt = read(run.folder) if run is not None and member.state not in ("skipped", "waiting") else None
    if receipt is None:
        return member.why or member.state, None, ()
    findings = tuple(finding.message for finding in receipt.findings[:_MOST_FINDINGS])
    if member.state == "failed" and receipt.exit_code == 0:  # the run is good, and the group is not satisfied
        return member.why, "bad", findings
    return receipt.outcome.sentence, receipt.outcome.level, findings


def show_receipt(group: Group, store: RunStore, console: Console, host: Host, *, as_json: bool = False) -> None:
    """Write a group's receipt.html and .json, and print it even if that raises DiskError, UntrustedPathError."""
    chain, names = chain_of(group, store), names_of(host)
    clean = chain.without_names(names)
    console.show(json.dumps(clean.as_dict(), indent=1) if as_json else "\n".join(terminal(chain)))
    console.note(f"receipt: {as_typed(write(clean, store.project))}")


def write(chain: ServiceChain, project: Path) -> Path:
    """Write receipt.html and .json; return the page's path. Raises DiskError, UntrustedPathError."""
    text = json.dumps(chain.as_dict(), indent=1)
    nofollow.write_inside(project, *PAGES, chain.id, "receipt.json", data=text.encode())
    return nofollow.write_inside(project, *PAGES, chain.id, "receipt.html", data=html(chain).encode())


def terminal(chain: ServiceChain) -> Iterator[str]:
    """Yield lines of about 100 characters at most."""
    head = "[-]" if chain.state == "running" else "[✓]" if chain.passed else "[✗]"
    yield f"{head} {chain.headline}: {chain.summary}"
    width = max((len(link.name) for link in chain.links), default=0)
    for link in chain.links:
        level = {"bad": "[✗]", "warning": "[!]"}.get(link.level or "") if link.state == "done" else None
        took = _gpu_seconds(link)
        served = link.role == "service" and link.state == "stopped"  # as every service ends
        mark = level or ("[-]" if served else _MARKS.get(link.state, "[-]"))
        head, words = f"{mark} {link.name:<{width}}  ", f"{link.verdict}{f' ({took})' if took else ''}"
        columns = shutil.get_terminal_size((10_000, 0)).columns
        yield head + f"\n{' ' * len(head)}".join(textwrap.wrap(words, max(20, columns - len(head))) or [""])


def html(chain: ServiceChain) -> str:
    """Return the receipt as a page."""
    from seatrial.receipt.render.pages import render_page

    tiles = [("wall time", format_seconds(chain.wall_s))] if chain.wall_s is not None else []
    tiles.append(("GPU time", format_seconds(chain.gpu_s) if chain.gpu_s else "none"))
    rows = [_row(link) for link in chain.links]
    return render_page("seatrial.compose", "group.html", chain=chain, tiles=tiles, rows=rows)


def _row(link: Link) -> dict[str, Any]:
    from seatrial.receipt.render.pages import OTHER, STATES

    facts = {
        "wall time": format_seconds(link.seconds) if link.seconds is not None else "",
        "GPU time": _gpu_seconds(link),
        "needs": ", ".join(link.needs),
        "run": link.run or "",
        "digest": link.receipt or "",
    }
    return {
        "link": link,
        "state": "criteria not met" if link.missed_criteria else link.state,
        "chip": STATES["failed"] if link.missed_criteria else STATES.get(link.state, OTHER),
        "facts": [(label, value) for label, value in facts.items() if value],
        "page": f"../../runs/{link.run}/receipt.html" if link.run and link.receipt else None,
    }


def _gpu_seconds(link: Link) -> str:
    return f"{format_seconds(link.gpu_seconds)} × GPU" if link.gpus and link.gpu_seconds else ""

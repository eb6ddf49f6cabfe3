"""Who is told that an ``up`` has ended, and what: once for all of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seatrial.job.loading import read_notify
from seatrial.job.notify import Notify
from seatrial.pipelines import chain_page
from seatrial.pipelines.chain import Chain, is_good
from seatrial.pipelines.request import Front, UpRequest
from seatrial.runs.notify import Ended, keep_request
from seatrial.system.desktop import nothing_to_show_on


def request_notify(request: UpRequest, folder: Path, front: Front, environ: Mapping[str, str]) -> Notify:
    """Remember it in the group's record. What the file asks for has been allowed. Raises ConfigError, DiskError."""
    told, _ = read_notify(request.project, request.notify)
    for warning in nothing_to_show_on(told.desktop, environ):
        front.say(f"warning: {warning}")
    if told.asked:
        keep_request(folder, request.project, told)
    return told


def ended_group(chain: Chain, exit_code: int | None, receipt: Path) -> Ended:
    """What is told of a group, from its chain without names."""
    outcome = "unmet" if chain.state == "done" and not chain.passed else chain.state
    bad = next((link for link in chain.links if link.state == "failed"), None)
    bad = bad or next((link for link in chain.links if not is_good(link)), None)
    first = f"; {bad.name}: {bad.verdict}" if bad is not None else ""
    first = first or "".join(f"; {words}" for words in chain.broken[:1])
    headline = f"{chain_page.summary(chain)}{first}"
    return Ended(
        kind=chain.kind,
        id=chain.id,
        name=chain.name,
        target=chain_page.headline(chain),
        outcome=outcome,
        level="good" if chain.passed else "warning" if outcome in ("stopped", "interrupted") else "bad",
        exit_code=exit_code,
        headline=headline,
        seconds=chain.wall_s,
        text=f"seatrial: up: {chain_page.headline(chain)}: {headline}",
        receipt=receipt,
    )

"""Writing a group's chained receipt, showing it, and telling of it: what every kind of group ends with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.request import Front
from seatrial.runs.store import RunStore

if TYPE_CHECKING:
    from seatrial.pipelines.chain import Chain
    from seatrial.runs.notify import Ended


def show_chain(
    group: Group,
    store: RunStore,
    front: Front,
    environ: Mapping[str, str],
    *,
    as_json: bool = False,
    exit_code: int | None = None,
) -> None:
    """Write receipt.html, .md and .json of a group, show it in words or as JSON, and tell who asked to be told.

    Args:
        exit_code: with which the command that looked after the group ends; None: that is another one.

    Raises DiskError, UntrustedPathError: it cannot be written; it has been shown then.
    """
    from seatrial.pipelines import chain_page  # loads all that renders
    from seatrial.pipelines.chain import chain_of
    from seatrial.runs import notify
    from seatrial.system.names import names_of
    from seatrial.system.typed_path import as_typed

    chain = chain_of(group, store)
    names = names_of(environ)
    if as_json:
        front.show(json.dumps(chain_page.without_names(chain, names).as_dict(), indent=1))
    else:
        front.show("\n".join(chain_page.terminal(chain)))
    page = chain_page.write(chain, store.project, names)
    front.say(f"receipt: {as_typed(page)}")
    if group.state != "running":
        ended = ended_group(chain_page.without_names(chain, names), exit_code, page.with_name("receipt.json"))
        notify.begin(GroupStore(store).folder(group.id), ended, environ)


def ended_group(chain: Chain, exit_code: int | None, receipt: Path) -> Ended:
    """What is told of a group, from its chain without names."""
    from seatrial.pipelines import chain_page
    from seatrial.pipelines.chain import is_good
    from seatrial.runs.notify import Ended

    outcome = "unmet" if chain.state == "done" and not chain.passed else chain.state
    bad = next((link for link in chain.links if link.state == "failed"), None)
    bad = bad or next((link for link in chain.links if not is_good(link)), None)
    first = f"; {bad.name}: {bad.verdict}" if bad is not None else ""
    first = first or "".join(f"; {words}" for words in chain.broken[:1])
    headline = f"{chain_page.summary(chain)}{first}"
    return Ended(
        chain.kind,
        chain.id,
        chain.name,
        chain_page.headline(chain),
        outcome,
        "good" if chain.passed else "warning" if outcome in ("stopped", "interrupted") else "bad",
        exit_code,
        headline,
        chain.wall_s,
        f"seatrial: up: {chain_page.headline(chain)}: {headline}",
        receipt,
    )

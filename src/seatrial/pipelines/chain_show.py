"""Writing a group's chained receipt and showing it: what every kind of group ends with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.request import Front
from seatrial.runs.store import RunStore


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
    from seatrial.pipelines.end_notification import ended_group
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

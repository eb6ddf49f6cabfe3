"""Writing a group's chained receipt and showing it: what every kind of group ends with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seatrial.pipelines.group import Group
from seatrial.pipelines.request import Front
from seatrial.runs.store import RunStore


def show_chain(
    group: Group, store: RunStore, front: Front, environ: Mapping[str, str], *, as_json: bool = False
) -> None:
    """Write receipt.html, .md and .json of a group, and show it in words, or as JSON.

    Raises DiskError, UntrustedPathError: it cannot be written; it has been shown then.
    """
    from seatrial.pipelines import chain_page  # loads all that renders
    from seatrial.pipelines.chain import chain_of
    from seatrial.system.names import names_of
    from seatrial.system.typed_path import as_typed

    chain = chain_of(group, store)
    names = names_of(environ)
    if as_json:
        front.show(json.dumps(chain_page.without_names(chain, names).as_dict(), indent=1))
    else:
        front.show("\n".join(chain_page.terminal(chain)))
    front.say(f"receipt: {as_typed(chain_page.write(chain, store.project, names))}")

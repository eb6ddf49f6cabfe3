"""``docker info`` and ``podman info`` → what the engine says of itself, or why it says nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from seatrial.backends.containers.engine_errors import unavailable_error
from seatrial.job.plan import EngineAddress
from seatrial.system.command import Completed

#: What podman-docker's script prints; where it is told to be quiet, Podman's own answer gives it away.
_IS_PODMAN = "Emulate Docker CLI using podman"


def read_info(
    engine: str, key: str, ended: Completed, environ: Mapping[str, str] = os.environ, at: EngineAddress | None = None
) -> dict[str, Any]:
    """The answer, which has the ``key`` of a working engine. Raises EngineUnavailableError.

    Without a daemon Docker's client prints its own half; older ones exit with 0 then (docker/cli#2300).
    """
    try:
        info = json.loads(ended.stdout)
    except ValueError:
        info = None
    told = info if isinstance(info, dict) else {}
    if ended.exit_code == 0 and told.get(key):
        return told
    said = ended.stderr or "\n".join(told.get("ServerErrors") or [])
    if "buildahVersion" in str(told.get("host")):
        said = _IS_PODMAN
    raise unavailable_error(engine, said or ("" if isinstance(info, dict) else ended.stdout), environ, at)

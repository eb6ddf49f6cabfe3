"""Images and build cache of ours that nothing uses, in each engine that answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import Freed
from seatrial.errors import SeatrialError
from seatrial.images.plan import slug

#: A cached step that no build has used for so long is of an older state of some project.
IDLE_S = 24 * 3600.0


def free_images(project: Path | None, environ: Mapping[str, str], *, dry_run: bool) -> dict[str, Freed]:
    """Engine → what came free. An engine that is not there, or does not answer, is left out.

    Args:
        project: its own images but the newest, and cached steps that were not used for a day; None: all of ours.
    """
    repository = f"seatrial/{slug(project.name)}" if project is not None else None
    idle_s = IDLE_S if project is not None else 0.0
    freed = {}
    for name in table.on_this_host():
        backend = table.backend(name, environ)
        try:
            if backend.images is not None and backend.facts().available:
                freed[name] = backend.images.free_unused(repository=repository, idle_s=idle_s, dry_run=dry_run)
        except SeatrialError:
            continue
    return freed

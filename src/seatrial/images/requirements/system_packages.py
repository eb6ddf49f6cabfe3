"""Debian packages that Python packages need and their wheels do not bring: libGL for OpenCV, git for GitPython."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from seatrial.images.requirements.requirements_files import canonical_name
from seatrial.stack.facts import table


def system_packages(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Name of a required package → the Debian packages (bookworm) that it needs; what needs none is left out."""
    names = [name for line in lines if (name := canonical_name(line)) is not None]
    needed = _needed()
    return {name: needed[name] for name in names if name in needed}


@lru_cache(maxsize=1)
def _needed() -> dict[str, tuple[str, ...]]:
    data = table("system_packages")
    needed = {name: tuple(packages) for name, packages in data["packages"].items()}
    for inner, names in data["brings"].items():
        needed |= dict.fromkeys(names.split(), needed[inner])
    return needed

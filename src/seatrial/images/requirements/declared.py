"""What a project's own packaging asks for, whichever file says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from packaging.specifiers import SpecifierSet

from seatrial.system.records import dataclass


@dataclass(frozen=True)
class Declared:
    """Requirements of the project as a package.

    Attributes:
        extras: canonical name → requirements; None where they are computed when the project is installed.
        name: the project's own, canonical, where it is known.
    """

    lines: tuple[str, ...]
    python: SpecifierSet
    extras: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    name: str | None = None

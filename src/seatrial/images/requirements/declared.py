"""Hold the requirements that a project's own packaging declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet


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

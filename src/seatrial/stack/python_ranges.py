"""Return the Pythons that a release has wheels for, from a table; used without an index."""

from __future__ import annotations

from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.stack.facts import table

_Row = tuple[Version, Version, Version]


def known_range(package: str, specifier: SpecifierSet) -> tuple[Version, Version] | None:
    """(lowest, highest) Python of the releases that the specifier admits; None where the table knows none of them.

    A row holds up to the next row's release: an exact version takes the last row that is not newer.
    """
    rows = _rows().get(package, ())
    exact = [each.version for each in specifier if each.operator == "==" and not each.version.endswith(".*")]
    if exact:
        version = Version(exact[0])
        fitting = [row for row in rows if row[0] <= version][-1:]
        if fitting == list(rows[-1:]) and fitting and version.release[:2] != fitting[0][0].release[:2]:
            return None  # newer than the table
    else:
        least = [Version(each.version) for each in specifier if each.operator in (">=", ">", "~=")]
        floor = [row for row in rows if row[0] <= max(least)][-1:] if least else []
        fitting = [row for row in rows if specifier.contains(row[0])]
        if fitting or (floor and floor != list(rows[-1:])):
            fitting = [*floor, *fitting]
    return (min(row[1] for row in fitting), max(row[2] for row in fitting)) if fitting else None


def brought(package: str, specifier: SpecifierSet) -> str | None:
    """The requirement of a pinned release whose wheels are for some Pythons alone, though its own is for all."""
    pinned = next((each.version for each in specifier if each.operator == "=="), None)
    rows = [
        (Version(row["from"]), row["needs"]) for row in table("python_ranges")["brings"] if row["package"] == package
    ]
    if pinned is None or not rows:
        return None
    release = Version(pinned.removesuffix(".*"))
    if pinned.endswith(".*") and any(release < begins and specifier.contains(begins) for begins, _ in rows):
        return None  # of 4.* the newest is taken
    fitting = [needs for begins, needs in rows if begins <= release]
    return fitting[-1] if fitting else None


@lru_cache(maxsize=1)
def _rows() -> dict[str, tuple[_Row, ...]]:
    found: dict[str, list[_Row]] = {}
    for row in table("python_ranges")["releases"]:
        low, high = map(Version, row["python"])
        found.setdefault(row["package"], []).append((Version(row["from"]), low, high))
    return {name: tuple(sorted(rows)) for name, rows in found.items()}

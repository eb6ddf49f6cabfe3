"""Read a wheel's file name (packaging.python.org/en/latest/specifications/binary-distribution-format)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version

from seatrial.errors import fallback
from seatrial.stack.rules import PARTNERS
from seatrial.system.text import regex

_NAME = r"(?P<name>[\w.-]+(?:\[[\w,.-]*\])?\s*@\s*)?"
_WHEEL = regex(_NAME + r"(?P<address>\S*?)(?P<file>[^/\\\s?#]+\.whl)(?:[?#][^\s;]*)?(?=\s|;|$)")
#: Longest line that is read: the expression takes quadratic time.
_MOST_CHARACTERS = 2000
#: Packages whose release and build a plan chooses.
_CHOSEN = {*PARTNERS, *(partner for partners in PARTNERS.values() for partner in partners)}
#: Builds of PyTorch and of PyTorch Geometric, which have indexes of their own.
_BUILD = regex(r"cpu|cu\d+|pt\d+cu\d+")
#: ``2.6.3+cu123torch2.4cxx11abiFALSE`` and ``2.1.2+pt24cu121``: the torch that a wheel was compiled against.
_AGAINST = regex(r"\b(?:cu\d+)?(?:torch|pt)(\d)\.?(\d+)")
_LINUX = regex(r"any|(?:many)?linux\w*_(?:x86_64|aarch64)")


def released(line: str, known: Callable[[str], object]) -> str:
    """Return a checked line with the release in place of a framework's wheel, or of one for another system or machine.

    Others stay at their address. ``known``: whether the index has the package itself, and no namesake.
    """
    match = _match(line)
    if match is None or not match["address"].startswith("http") or (wheel := _parsed(match)) is None:
        return line
    name, version, tags = wheel
    rest = re.sub("^;", " ;", line[match.end() :])
    if name not in _CHOSEN and (any(_LINUX.fullmatch(tag.platform) for tag in tags) or not known(name)):
        return f"{'' if match['name'] else f'{name} @ '}{match[0]}{rest}"
    built = version.local and _BUILD.fullmatch(version.local)
    return f"{name}=={version if built else version.public}{rest}"


def pythons(lines: Iterable[str]) -> SpecifierSet:
    """Return the Pythons that can install the wheels named in these lines."""
    found = SpecifierSet()
    for _, _, tags in _unconditional(lines):
        minors = {int(cpython[1]) for tag in tags if (cpython := re.fullmatch(r"cp3(\d+)", tag.interpreter))}
        if minors:
            stable = any(tag.abi == "abi3" for tag in tags)
            found &= SpecifierSet(f">=3.{min(minors)}" if stable else f">=3.{min(minors)},<3.{max(minors) + 1}")
    return found


def compiled_against(lines: Iterable[str]) -> Iterator[str]:
    """Yield constraints on the torch against which the wheels named in these lines were compiled."""
    for _, version, _ in _unconditional(lines):
        yield from (f"torch=={major}.{minor}.*" for major, minor in _AGAINST.findall(version.local or ""))


def _unconditional(lines: Iterable[str]) -> Iterator[tuple[NormalizedName, Version, frozenset[Tag]]]:
    """Yield the wheels of lines without a marker: lists name one for each Python and system."""
    yield from filter(None, map(_parsed, filter(None, (_match(line) for line in lines if ";" not in line))))


def _match(line: str) -> re.Match[str] | None:
    return _WHEEL.match(line) if ".whl" in line and len(line) <= _MOST_CHARACTERS else None


@fallback(None, on=InvalidWheelFilename)  # a name of the user's own; pip decides
def _parsed(match: re.Match[str]) -> tuple[NormalizedName, Version, frozenset[Tag]] | None:
    name, version, _, tags = parse_wheel_filename(unquote(match["file"]))
    return name, version, tags

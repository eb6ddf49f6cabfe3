"""Read the file name of a wheel, where a list names the wheel by its address or path.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version

from seatrial.stack.rules import PARTNERS

_NAME = r"(?P<name>[\w.-]+(?:\[[\w,.-]*\])?\s*@\s*)?"
_WHEEL = re.compile(_NAME + r"(?P<address>\S*?)(?P<file>[^/\\\s?#]+\.whl)(?:[?#][^\s;]*)?(?=\s|;|$)")
#: Packages whose release and build a plan chooses.
_CHOSEN = {*PARTNERS, *(partner for partners in PARTNERS.values() for partner in partners)}
#: Builds of PyTorch and of PyTorch Geometric, which have indexes of their own.
_BUILD = re.compile(r"cpu|cu\d+|pt\d+cu\d+")
#: ``2.6.3+cu123torch2.4cxx11abiFALSE`` and ``2.1.2+pt24cu121``: the torch that a wheel was compiled against.
_AGAINST = re.compile(r"\b(?:cu\d+)?(?:torch|pt)(\d)\.?(\d+)")
_LINUX = re.compile(r"any|(?:many)?linux\w*_(?:x86_64|aarch64)")
_CPYTHON = re.compile(r"cp3(\d+)")


def released(text: str) -> str:
    """Return a requirement with the release in place of a framework's wheel, or of one for another system or machine.

    A wheel that Linux can install from its address stays, by its name: ``name @ https://…``.
    """
    if not (match := _WHEEL.match(text)) or not (wheel := _parsed(match["file"])):
        return text
    name, version, tags = wheel
    address, rest = match["address"], text[match.end() :]
    if address.startswith("http") and name not in _CHOSEN and any(_LINUX.fullmatch(tag.platform) for tag in tags):
        return text if match["name"] else f"{name} @ {text}"
    built = version.local and _BUILD.fullmatch(version.local)
    return f"{name}=={version if built else version.public}{rest}"


def pythons(lines: Iterable[str]) -> SpecifierSet:
    """Return the Pythons that can install the wheels named in these lines."""
    found = SpecifierSet()
    for tags in (wheel[2] for line in lines if (match := _WHEEL.match(line)) and (wheel := _parsed(match["file"]))):
        minors = {int(cpython[1]) for tag in tags if (cpython := _CPYTHON.fullmatch(tag.interpreter))}
        if minors:
            stable = any(tag.abi == "abi3" for tag in tags)
            found &= SpecifierSet(f">=3.{min(minors)}" if stable else f">=3.{min(minors)},<3.{max(minors) + 1}")
    return found


def compiled_against(lines: Iterable[str]) -> Iterator[str]:
    """Yield constraints on the torch against which the wheels named in these lines were compiled."""
    for line in lines:
        if (match := _WHEEL.match(line)) and (wheel := _parsed(match["file"])):
            yield from (f"torch=={major}.{minor}.*" for major, minor in _AGAINST.findall(wheel[1].local or ""))


def _parsed(file: str) -> tuple[NormalizedName, Version, frozenset[Tag]] | None:
    try:
        name, version, _, tags = parse_wheel_filename(unquote(file))
    except InvalidWheelFilename:  # a name of the user's own; pip decides
        return None
    return name, version, tags

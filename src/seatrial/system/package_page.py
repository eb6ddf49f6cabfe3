"""One project's page of a package index, as JSON or HTML: the files that pip could install from it.

Formats: https://packaging.python.org/specifications/simple-repository-api/ and, for pages that link to files
(``--find-links``), the same HTML. What a page says is a stranger's: sizes are bounded, and a name that is none is left
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.system.records import dataclass

#: Files of one project that are read; the largest projects have 15,000.
_MOST_FILES = 60_000

_SDISTS = (".tar.gz", ".zip")


@dataclass(frozen=True)
class IndexFile:
    """A wheel for Linux, or a source distribution.

    Attributes:
        requires_python: as the index says it; "" where it says nothing.
        size_bytes: None where the index does not say.
    """

    name: str
    requires_python: str = ""
    size_bytes: int | None = None

    @property
    def is_wheel(self) -> bool:
        return self.name.endswith(".whl")


#: Version → its files. A version that has files for other systems alone has none.
Releases = dict[str, tuple[IndexFile, ...]]


def releases_of(page: bytes, content_type: str, names: Iterable[str]) -> dict[str, Releases]:
    """Project → what the page has of it, for the projects asked for. Raises ValueError: it is no such page.

    Args:
        names: canonical. A page of links has files of many projects.
    """
    if "json" in content_type:
        return releases_of_files(_json_files(page), names)
    if "html" not in content_type:
        raise ValueError("neither JSON nor HTML")
    return releases_of_files(_html_files(page), names)


def releases_of_files(files: Iterable[IndexFile], names: Iterable[str]) -> dict[str, Releases]:
    """Project → version → files, for the projects asked for."""
    found: dict[str, dict[str, list[IndexFile]]] = {name: {} for name in names}
    for _, file in zip(range(_MOST_FILES), files, strict=False):
        read = _name_and_version(file.name)
        if read is not None and read[0] in found:
            listed = found[read[0]].setdefault(read[1], [])
            if not file.is_wheel or _for_linux(file.name):
                listed.append(file)
    return {name: {version: tuple(listed) for version, listed in releases.items()} for name, releases in found.items()}


def _for_linux(wheel: str) -> bool:
    platform = wheel[: -len(".whl")].rpartition("-")[2]
    return platform == "any" or ("linux" in platform and "musllinux" not in platform)


def _name_and_version(file: str) -> tuple[str, str] | None:
    """(canonical name, version) of a file that pip could install, or None. Tags are looked at where they matter."""
    if file.endswith(".whl"):
        name, _, rest = file.partition("-")
        version = rest.partition("-")[0]
    else:
        ending = next((each for each in _SDISTS if file.endswith(each)), None)
        if ending is None:
            return None
        name, _, version = file[: -len(ending)].rpartition("-")
    canonical, public = _canonical(name), _version(version)
    return (canonical, public) if canonical and public else None


@lru_cache(maxsize=1024)
def _canonical(name: str) -> str:
    return canonicalize_name(name)


@lru_cache(maxsize=8192)
def _version(text: str) -> str | None:
    try:
        return str(Version(text.replace("_", "+")))
    except ValueError:  # InvalidVersion is one; so is a number of thousands of digits
        return None


def _json_files(page: bytes) -> Iterator[IndexFile]:
    try:
        files: Any = json.loads(page)["files"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("not a page of a package index") from error
    if not isinstance(files, list):
        raise ValueError("not a page of a package index")
    for file in files:
        if isinstance(file, dict) and isinstance(name := file.get("filename"), str):
            requires, size = file.get("requires-python"), file.get("size")
            yield IndexFile(
                name, requires if isinstance(requires, str) else "", size if isinstance(size, int) else None
            )


def _html_files(page: bytes) -> Iterator[IndexFile]:
    from seatrial.system.package_links import links_of  # the standard library's parser; JSON is what most indexes give

    for name, requires_python in links_of(page.decode("utf-8", "replace")):
        yield IndexFile(name, requires_python)

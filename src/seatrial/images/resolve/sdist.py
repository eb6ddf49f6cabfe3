"""Read the files by which a package is built, from its source on an index: a program of its own, which uv.py bounds.

Standard input is ``[requirement, Python, index, day]``; nothing is unpacked to files, and nothing runs. It ends with an
error, and nothing on standard output, if the index has no source that can be read.
"""

from __future__ import annotations

import html
import io
import json
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

_MOST_BYTES, _MOST_UNPACKED, _MOST_MEMBERS, _MOST_TEXT, _MOST_OF_PATH = 16 << 20, 200 << 20, 20_000, 500_000, 300
_LINK = re.compile(r"""<a[^>]*href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""")

#: Files that decide how a package is built, and setuptools' list of what it requires.
_WANTED = re.compile(
    r"(?:|[^/]+\.egg-info/|src/[^/]+\.egg-info/)(requires\.txt)|(pyproject\.toml|setup\.py|meson\.build)"
)


def main() -> None:
    """Write ``{"names": …, "texts": …, "version": …}`` of the newest source that requirement and day admit."""
    line, python, index, as_of = json.load(sys.stdin)
    found = dict(_sources(Requirement(line), python, index, as_of))
    names, texts = _read(_get(found[newest := max(found)]))
    kept = [each for each in names if len(each) <= _MOST_OF_PATH]
    json.dump({"names": kept, "texts": texts, "version": str(newest)}, sys.stdout)


def _get(url: str) -> bytes:
    """Download an address. Raises ValueError for another scheme or too many bytes; OSError."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(url)
    with urlopen(Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"})) as answer:
        data: bytes = answer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("too large")
    return data


def files_of(index: str, package: str, as_of: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, address, Pythons) of the files on an index's page, JSON or HTML, of a day, if it has that one's.

    Raises ValueError, OSError.
    """
    url = f"{index.rstrip('/')}/{canonicalize_name(package)}/"
    page = _get(url).decode()
    if page.lstrip().startswith("{"):
        rows = [each for each in json.loads(page)["files"] if not each.get("yanked")]
        rows = [each for each in rows if not as_of or each.get("upload-time", "")[:10] <= as_of] or rows
        yield from ((row["filename"], urljoin(url, row["url"]), row.get("requires-python") or "") for row in rows)
    else:
        yield from ((html.unescape(text), urljoin(url, html.unescape(link)), "") for link, text in _LINK.findall(page))


def _sources(wanted: Requirement, python: str, index: str, as_of: str) -> Iterator[tuple[Version, str]]:
    """Yield (version, address) of the sources that the requirement admits."""
    for name, address, pythons in files_of(index, wanted.name, as_of):
        with suppress(InvalidSdistFilename):
            project, version = parse_sdist_filename(name)
            early = bool(wanted.specifier.prereleases)
            fits = wanted.specifier.contains(version, early) and SpecifierSet(pythons).contains(f"{python}.99")
            if project == canonicalize_name(wanted.name) and fits:
                yield version, address


def _read(data: bytes) -> tuple[list[str], dict[str, str]]:
    """Return the paths of a tar or zip archive, without the folder that they are all in, and the texts to read."""
    texts: dict[str, bytes] = {}
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            entries = {each.filename.partition("/")[2]: each for each in zipped.infolist()[:_MOST_MEMBERS]}
            names = list(entries)
            for name, match in ((each, _WANTED.fullmatch(each)) for each in names):
                if match:
                    texts[match[1] or name] = zipped.open(entries[name]).read(_MOST_TEXT)
    else:
        names, unpacked = [], zlib.decompressobj(31).decompress(data, _MOST_UNPACKED)
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
            for member in islice(archive, _MOST_MEMBERS):
                names.append(member.name.partition("/")[2])
                match = _WANTED.fullmatch(names[-1])
                if match and (file := archive.extractfile(member)) is not None:
                    texts[match[1] or names[-1]] = file.read(_MOST_TEXT)
    return names, {name: text.decode("utf-8", "replace") for name, text in texts.items()}

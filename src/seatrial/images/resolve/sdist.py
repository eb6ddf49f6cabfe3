"""Read the files by which a package is built, from its source on an index: bounded, and nothing unpacked or run."""

from __future__ import annotations

import html
import io
import json
import re
import ssl
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from seatrial.images.sources import PackageSource

_MOST_BYTES, _MOST_UNPACKED, _MOST_MEMBERS, _MOST_TEXT = 16 << 20, 200 << 20, 20_000, 500_000
_LINK = re.compile(r"""<a[^>]*href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""")
_JSON = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"

#: Files that decide how a package is built.
BUILD_FILES = ("pyproject.toml", "setup.py", "meson.build")


@dataclass(frozen=True)
class SourceTexts:
    """Hold a source's paths below its first folder, and the text of those of BUILD_FILES that it has."""

    names: tuple[str, ...]
    texts: dict[str, str]


def read_source(
    wanted: Requirement, python: str, sources: tuple[PackageSource, ...], authorities: Path | None, limit_s: float
) -> SourceTexts | None:
    """Read the newest source that the requirement admits; None if no index without a login answers with one."""
    for each in sources:
        if each.kind == "index" and urlsplit(each.url).scheme in ("http", "https") and "@" not in each.url:
            page = f"{each.url.rstrip('/')}/{canonicalize_name(wanted.name)}/"
            try:
                found = dict(_sources(_get(page, authorities, limit_s).decode(), page, wanted, python))
                if found:
                    url = found[max(found)]
                    return _read(_get(url, authorities, limit_s))
            except (
                OSError,
                ValueError,
                EOFError,
                KeyError,
                TypeError,
                tarfile.TarError,
                zipfile.BadZipFile,
                zlib.error,
            ):
                continue
    return None


def _get(url: str, authorities: Path | None, limit_s: float) -> bytes:
    """Return what is at the address. Raises ValueError for another scheme or too much, OSError."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen  # few plans have a package without a wheel

    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(url)
    trusted = ssl.create_default_context(cafile=str(authorities) if authorities else None)
    try:
        with urlopen(Request(url, headers={"Accept": _JSON}), timeout=limit_s, context=trusted) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
    except HTTPException as error:
        raise OSError(str(error)) from error
    if len(data) > _MOST_BYTES:
        raise ValueError("too large")
    return data


def _sources(page: str, url: str, wanted: Requirement, python: str) -> Iterator[tuple[Version, str]]:
    """Yield (version, address) of the sources on an index's page, JSON or HTML, that the requirement admits."""
    if page.lstrip().startswith("{"):
        rows = [each for each in json.loads(page)["files"] if not each.get("yanked")]
        files = [(row["filename"], row["url"], row.get("requires-python") or "") for row in rows]
    else:
        files = [(html.unescape(text), html.unescape(link), "") for link, text in _LINK.findall(page)]
    for name, link, pythons in files:
        try:
            project, version = parse_sdist_filename(name)
        except InvalidSdistFilename:
            continue
        fits = wanted.specifier.contains(version)
        if project == canonicalize_name(wanted.name) and fits and SpecifierSet(pythons).contains(f"{python}.99"):
            yield version, urljoin(url, link)


def _read(data: bytes) -> SourceTexts:
    """Read a tar or zip archive by its members, without the folder that they are all in."""
    texts: dict[str, bytes] = {}
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            names = [each.partition("/")[2] for each in zipped.namelist()[:_MOST_MEMBERS]]
            for name, entry in zip(names, zipped.infolist(), strict=False):
                if name in BUILD_FILES:
                    texts[name] = zipped.open(entry).read(_MOST_TEXT)
    else:
        names, unpacked = [], zlib.decompressobj(31).decompress(data, _MOST_UNPACKED)
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
            for member in islice(archive, _MOST_MEMBERS):
                names.append(member.name.partition("/")[2])
                if names[-1] in BUILD_FILES and (file := archive.extractfile(member)) is not None:
                    texts[names[-1]] = file.read(_MOST_TEXT)
    return SourceTexts(tuple(names), {name: text.decode("utf-8", "replace") for name, text in texts.items()})

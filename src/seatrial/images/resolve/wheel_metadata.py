"""Read a stranger's metadata in bounded size: uv unpacks wheels of any size, so it gets one with that alone."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from seatrial.errors import fallback
from seatrial.images.sources import digest_of_wheel
from seatrial.system.agent_archive import zip_bytes
from seatrial.system.files import ArchiveFile

#: A requirement without an address, which uv takes from a list alone.
_REQUIREMENT = re.compile(r"(?m)^[\w.-]+(?:\[[\w,.-]*\])?(?:[<>=!~]=?=?[\w.*+!-]+,?)*$")

#: torch's metadata is 30 kB.
_MOST_BYTES = 1 << 20


def write_links(
    folder: Path, wheels: Iterable[Path], stand_ins: Mapping[str, str], required: Mapping[tuple[str, str], str]
) -> dict[str, str | None]:
    """Make a folder of wheels for uv; return the digests of what it reads → those of the wheels, None for a stand-in.

    ``stand_ins``: name → version. ``required``: both → text of their requires.txt.
    """
    folder.mkdir()
    found = [(path.name, _metadata_wheel(path) or b"", digest_of_wheel(path)) for path in wheels]  # uv names one of b""
    digests: dict[str, str | None] = {}
    for name, data, digest in (
        *found,
        *((*_empty_wheel(*each, required.get(each, "")), None) for each in stand_ins.items()),
    ):
        (folder / name).write_bytes(data)
        digests[hashlib.sha256(data).hexdigest()] = digest
    return digests


@fallback(None, on=(OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error))
def _metadata_wheel(path: Path) -> bytes | None:
    """Return a wheel of the same metadata that no other wheel is turned into; None if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with ArchiveFile(os.open(path, flags)) as file, zipfile.ZipFile(file) as archive:
        found = [each for each in archive.infolist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", each.filename)]
        [entry] = [each for each in found if each.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
        with archive.open(entry) as opened:
            metadata = opened.read(_MOST_BYTES + 1)
    return None if len(metadata) > _MOST_BYTES else _wheel(entry.filename.partition("/")[0], metadata, path.name)


def _empty_wheel(name: str, version: str, required: str) -> tuple[str, bytes]:
    """Return the file name and content of a universal wheel without code; extras and markers are left out."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in _REQUIREMENT.findall(required.partition("\n[")[0]))
    return f"{stem}-py3-none-any.whl", _wheel(f"{stem}.dist-info", metadata.encode(), "seatrial")


def _wheel(folder: str, metadata: bytes, generator: str) -> bytes:
    wheel = f"Wheel-Version: 1.0\nGenerator: {generator}\nRoot-Is-Purelib: true\nTag: py3-none-any\n".encode()
    return zip_bytes({f"{folder}/METADATA": metadata, f"{folder}/WHEEL": wheel, f"{folder}/RECORD": b""})

"""Read the metadata of a stranger's wheel: of bounded size, and nothing unpacked.

uv unpacks a wheel of a folder into its cache, at any size. It gets a wheel of the same name in its place,
with the metadata alone.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

from seatrial.system.agent_archive import zip_bytes
from seatrial.system.files import ArchiveFile

#: torch's metadata is 30 kB.
_MOST_BYTES = 1 << 20


def metadata_wheel(path: Path) -> bytes | None:
    """Return a wheel of the same metadata that no other wheel is turned into; None if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with ArchiveFile(os.open(path, flags)) as file, zipfile.ZipFile(file) as archive:
            [entry] = [each for each in archive.infolist() if _is_metadata(each)]
            with archive.open(entry) as opened:
                metadata = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
    if len(metadata) > _MOST_BYTES:
        return None
    return _wheel(entry.filename.partition("/")[0], metadata, path.name)


def empty_wheel(name: str, version: str) -> tuple[str, bytes]:
    """Return the file name and content of a wheel for every machine, with neither code nor requirements."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    return f"{stem}-py3-none-any.whl", _wheel(f"{stem}.dist-info", metadata, "seatrial")


def _wheel(folder: str, metadata: bytes, generator: str) -> bytes:
    wheel = f"Wheel-Version: 1.0\nGenerator: {generator}\nRoot-Is-Purelib: true\nTag: py3-none-any\n".encode()
    return zip_bytes({f"{folder}/METADATA": metadata, f"{folder}/WHEEL": wheel, f"{folder}/RECORD": b""})


def _is_metadata(entry: zipfile.ZipInfo) -> bool:
    folder, _, name = entry.filename.partition("/")
    known = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    return folder.endswith(".dist-info") and name == "METADATA" and known

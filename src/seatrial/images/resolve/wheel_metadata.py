"""Read the metadata of a stranger's wheel: of bounded size, and nothing unpacked.

uv unpacks a wheel of a folder into its cache, at any size. It gets a wheel of the same name in its place,
with the metadata alone.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from pathlib import Path

from seatrial.system.agent_archive import zip_bytes

#: torch's metadata is 30 kB; its list of files (11,000) takes 1.5 MB.
_MOST_BYTES, _MOST_LISTED_BYTES = 1 << 20, 8 << 20


class _Bounded(io.FileIO):
    """A file that is never read whole: zipfile reads a list of files at once, of the size that the file names."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(_MOST_LISTED_BYTES + 1 if size is None or size < 0 else min(size, _MOST_LISTED_BYTES + 1))
        if len(data) > _MOST_LISTED_BYTES:
            raise OSError("the list of files is too long")
        return data


def metadata_wheel(path: Path) -> bytes | None:
    """Return a wheel of the same metadata that no other wheel is turned into; None if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with _Bounded(os.open(path, flags)) as file, zipfile.ZipFile(file) as archive:
            [entry] = [each for each in archive.infolist() if _is_metadata(each)]
            with archive.open(entry) as opened:
                metadata = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
    if len(metadata) > _MOST_BYTES:
        return None
    folder = entry.filename.partition("/")[0]
    wheel = f"Wheel-Version: 1.0\nGenerator: {path.name}\nRoot-Is-Purelib: true\nTag: py3-none-any\n".encode()
    return zip_bytes({f"{folder}/METADATA": metadata, f"{folder}/WHEEL": wheel, f"{folder}/RECORD": b""})


def _is_metadata(entry: zipfile.ZipInfo) -> bool:
    folder, _, name = entry.filename.partition("/")
    known = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    return folder.endswith(".dist-info") and name == "METADATA" and known

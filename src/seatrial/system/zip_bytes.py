"""Zip archives whose bytes depend on their contents alone, so that an archive can be named by its digest."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

#: The first moment a zip can store (APPNOTE.TXT 4.4.6, MS-DOS date). Every entry gets it.
_DATE = (1980, 1, 1, 0, 0, 0)


def zip_bytes(contents: Mapping[str, bytes]) -> bytes:
    """Path in the archive → content, as one deflated zip; in the mapping's order, every file readable by all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()

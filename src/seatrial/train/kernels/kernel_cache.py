"""Compiled kernels from earlier processes: NVRTC takes tenths of a second for each source, reading one a millisecond.

A file for each source, driver, torch and kind of GPU lies in the cache folder, which in a container of seatrial's is
the one that outlives it. Whoever can write there could run code on the GPU: a folder of somebody else's, or one that
others may write, is not used. What cannot be read or written is compiled anew, silently: nothing but time is lost.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import torch

#: Of the file's begin: the digest of the rest.
DIGEST_BYTES = hashlib.sha256().digest_size
#: No kernel of ours is larger.
MOST_BYTES = 16 * 1024 * 1024


def folder() -> Path | None:
    """``$XDG_CACHE_HOME/seatrial/kernels``, else under ``~/.cache``; None where that cannot be trusted or made."""
    home = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '')}/.cache"
    if not home.startswith("/"):
        return None
    place = Path(home) / "seatrial" / "kernels"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return place if ours else None


def name(source: str, architecture: str, driver: int) -> str:
    """The file of a source: every byte of it and of what it was compiled by and for is in the name."""
    told = "\0".join((source, architecture, str(driver), torch.__version__, str(torch.version.cuda)))
    return f"{hashlib.sha256(told.encode()).hexdigest()}.cubin"


def read(file: str) -> bytes | None:
    """A binary that was kept whole, or None."""
    place = folder()
    if place is None:
        return None
    try:
        with (place / file).open("rb") as kept:
            content = kept.read(MOST_BYTES)
    except OSError:
        return None
    digest, binary = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return binary if binary and hashlib.sha256(binary).digest() == digest else None


def keep(file: str, binary: bytes) -> None:
    """Write a binary aside and rename it, so that nobody reads half of one."""
    place = folder()
    if place is None:
        return
    aside = ""
    try:
        descriptor, aside = tempfile.mkstemp(dir=place, suffix=".part")
        with os.fdopen(descriptor, "wb") as new:
            new.write(hashlib.sha256(binary).digest() + binary)
        Path(aside).replace(place / file)
    except OSError:
        if aside:
            Path(aside).unlink(missing_ok=True)

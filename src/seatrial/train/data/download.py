"""Fetching a public file once, from the first mirror that has it, checked by SHA-256 and renamed into place."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.train.errors import DataError
from seatrial.train.saving.atomic import write_file

TIMEOUT_S = 60


@dataclass(frozen=True)
class RemoteFile:
    """A file of known content.

    Attributes:
        name: its name below each mirror and in the folder.
        sha256: of the whole file, as downloaded.
    """

    name: str
    sha256: str


def fetch(files: Sequence[RemoteFile], mirrors: Sequence[str], folder: Path) -> None:
    """Make every file present in ``folder``; one that is there with the right checksum is kept.

    Raises:
        DataError: no mirror gave the file with the checksum expected; names what each one did.
        DiskFullError: it could not be written.
    """
    for file in files:
        path = folder / file.name
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256:
            continue
        content = _first_good(file, mirrors)
        write_file(path, lambda out, content=content: out.write(content))  # type: ignore[misc]
        print(f"downloaded {path} ({len(content):,} bytes)", flush=True)


def _first_good(file: RemoteFile, mirrors: Sequence[str]) -> bytes:
    failures = []
    for mirror in mirrors:
        url = mirror + file.name
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                content: bytes = response.read()
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            failures.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        got = hashlib.sha256(content).hexdigest()
        if got == file.sha256:
            return content
        failures.append(f"{url}: SHA-256 is {got}, expected {file.sha256}")
    raise DataError(f"cannot download {file.name}: " + "; ".join(failures), fix="put the file in --data DIR manually")

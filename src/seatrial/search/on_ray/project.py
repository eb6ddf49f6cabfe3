"""The project on a node: the same folder where the disk is shared, else a copy that the searcher sends."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.job.units import format_bytes
from seatrial.runs.store import RunStore
from seatrial.system.cache import cache_folder

#: Data belongs beside the project, on every node: the copy goes through memory.
MOST_BYTES = 500 * 10**6

#: Never part of what a trial needs of its project.
_LEFT = frozenset({".git", ".seatrial", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class Mark:
    """A file that shows whether a node sees the searcher's disk: in the runs' records, which lie outside the project.

    Attributes:
        project: as the searcher names it.
    """

    path: str
    text: str
    project: str

    def is_seen(self) -> bool:
        """On a node: both the records and the project are the searcher's own."""
        try:
            return Path(self.path).read_text() == self.text and Path(self.project).is_dir()
        except OSError:
            return False


def make_mark(project: Path, environ: Mapping[str, str]) -> Mark:
    """Written now; the searcher removes it at its end."""
    store = RunStore(project, environ)
    store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = secrets.token_hex(16)
    path = store.record / f"ray-{text[:8]}"
    path.write_text(text)
    return Mark(str(path), text, str(store.project))


def pack_project(project: Path) -> bytes:
    """The project's files as a tar.gz.

    Raises UsageError: it is too large to be sent.
    """
    out, total = io.BytesIO(), 0
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for top, folders, files in os.walk(project):
            folders[:] = sorted(each for each in folders if each not in _LEFT)
            for name in sorted(files):
                path = Path(top) / name
                if not path.is_file():
                    continue
                total += path.stat().st_size
                if total > MOST_BYTES:
                    raise UsageError(
                        f"The project has more than {format_bytes(MOST_BYTES)}, too much to send to every node",
                        cause="Data in the project's folder, for the most part",
                        run="move it to the same path on every node, and: seatrial sweep … --data /that/path",
                    )
                info = tar.gettarinfo(str(path.resolve()), str(path.relative_to(project)))
                info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
                with path.open("rb") as file:
                    tar.addfile(info, file)
    return out.getvalue()


def unpack_project(packed: bytes, name: str, environ: Mapping[str, str]) -> Path:
    """On a node: the copy's folder, made once for all trials of the same files. A process that is killed leaves none.

    Args:
        name: of the project's folder, which is in the image's tag.
    """
    digest = hashlib.sha256(packed).hexdigest()[:16]
    folder = cache_folder(environ) / "ray" / digest
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            for member in tar:
                target = fresh / name / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                if source is not None:
                    target.write_bytes(source.read())
                    target.chmod(member.mode & 0o777)
        try:
            fresh.rename(folder)
        except OSError:  # another trial was faster
            pass
    return folder / name

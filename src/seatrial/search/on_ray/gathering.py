"""What is brought from a node to the searcher: a trial's record, what it wrote, its models. A tar of plain files."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from seatrial.errors import UntrustedPathError
from seatrial.runs.run import Run

#: Folders of a run that stay on the node: its home is caches and what libraries leave behind.
_LEFT = ("home",)
_RECORD, _PLACE, _MODELS = "record", "place", "models"


def pack_run(run: Run, models: Path | None) -> Path:
    """A tar with the run's record, its place in the project and its models; in the folder for temporary files.

    Links, pipes and devices are left out: a target could have made them.
    """
    descriptor, name = tempfile.mkstemp(prefix="seatrial-gather-", suffix=".tar")
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for prefix, folder in ((_RECORD, run.folder), (_PLACE, run.place), (_MODELS, models)):
            if folder is not None and folder.is_dir():
                _add(tar, folder, prefix)
    if models is not None:
        shutil.rmtree(models, ignore_errors=True)
    return Path(name)


def _add(tar: tarfile.TarFile, folder: Path, prefix: str) -> None:
    for top, folders, files in os.walk(folder):
        here = Path(top).relative_to(folder)
        if here == Path() and prefix == _PLACE:
            folders[:] = [each for each in folders if each not in _LEFT]
        for name in files:
            path = Path(top) / name
            if path.is_file() and not path.is_symlink():
                tar.add(path, f"{prefix}/{here / name}", recursive=False)


def unpack_run(archive: Path, run: Run) -> None:
    """Put a packed run where it would be had it run here; its models beside its outputs.

    Raises UntrustedPathError: the archive names a file outside of its folders.
    """
    homes = {_RECORD: run.folder, _PLACE: run.place, _MODELS: run.place / "models"}
    with tarfile.open(archive) as tar:
        for member in tar:
            prefix, _, rest = member.name.partition("/")
            inside = Path(rest)
            if prefix not in homes or not member.isreg() or inside.is_absolute() or ".." in inside.parts:
                raise UntrustedPathError(
                    f"A node sent {member.name!r}, which is no plain file of a run",
                    run=f"seatrial runs show {run.id}",
                )
            target = homes[prefix] / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None, "a regular file has content"
            with target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o600 if prefix == _RECORD else 0o644)

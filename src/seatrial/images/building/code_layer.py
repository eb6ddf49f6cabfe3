"""The project's code as the last layer of an image: for places that cannot mount it from here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.images.dockerfiles.write import ORDINARY_USER
from seatrial.job.plan import CONTAINER_PROJECT, ImagePlan
from seatrial.job.units import format_bytes
from seatrial.system.nofollow import files_below

#: Folders that are no code: environments, caches, version control, results.
SKIPPED_FOLDERS = {".git", ".seatrial", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"}

#: A project larger than this has data or models in it, which belong onto a volume.
MAX_CODE_BYTES = 200 * 2**20

CODE = "code"


def with_code(image: ImagePlan, project: Path, skipped: Collection[Path] = ()) -> ImagePlan:
    """The image with the project at /workspace, under a tag of its own; a ready image becomes the base.

    Args:
        skipped: folders of the project that are data or models.

    Raises UsageError when the project is too large to be code.
    """
    files = _files(project, {folder.resolve() for folder in skipped})
    size = sum(path.stat().st_size for path in files.values())
    if size > MAX_CODE_BYTES:
        largest = max(files, key=lambda name: files[name].stat().st_size)
        raise UsageError(
            f"The project is {format_bytes(size)}, too large for code: its largest file is {largest}",
            cause="data and models in the project would be copied into the image",
            run="mv the data out of the project, and: seatrial run … --data pvc:NAME",
        )
    lines = [image.dockerfile] if image.dockerfile else [f"FROM {image.tag}", ""]
    lines += [
        "# The project, for nodes that cannot mount it. Writable for whichever user a pod runs as.",
        "USER root",
        f"COPY {CODE}/ {CONTAINER_PROJECT}/",
        f"RUN chmod -R a+rwX {CONTAINER_PROJECT}",
        f"USER {ORDINARY_USER}",
    ]
    name = re.sub(r"^seatrial/", "", image.tag.rpartition(":")[0] if ":" in image.tag.rpartition("/")[2] else image.tag)
    slug = re.sub(r"[^a-z0-9-]+", "-", (name if image.build else project.name).lower()).strip("-") or "project"
    return image.model_copy(
        update={
            "tag": f"seatrial/{slug}:{_digest(image, files)}",
            "build": True,
            "base": image.base or image.tag,
            "dockerfile": "\n".join([*lines, ""]),
            "context_files": {
                **image.context_files,
                **{f"{CODE}/{name}": str(path) for name, path in files.items()},
            },
        }
    )


def _files(project: Path, skipped: Collection[Path]) -> dict[str, Path]:
    """Path in the project → file, sorted. Links that lead out of it are left out: elsewhere they are broken."""
    found: dict[str, Path] = {}
    root = project.resolve()
    for entry in files_below(project, skip=SKIPPED_FOLDERS, hidden=True, links=True):
        path = Path(entry.path)
        if any(path.is_relative_to(folder) for folder in skipped):
            continue
        if not entry.is_symlink() or (path.is_file() and path.resolve().is_relative_to(root)):
            found[path.relative_to(project).as_posix()] = path
    return dict(sorted(found.items()))


def _digest(image: ImagePlan, files: dict[str, Path]) -> str:
    digest = hashlib.sha256(json.dumps([image.tag, sorted(files)]).encode())
    for path in files.values():
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]

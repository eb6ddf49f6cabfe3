"""Mount: a folder or file of the host at a path in a container, and the text that asks for one; DataMount: at /data or
/models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class DataMount(BaseModel):
    """A host folder for /data or /models."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: Path
    read_only: bool


class Mount(BaseModel):
    """A bind mount: absolute host path → absolute path in the container. ``str()`` is the text that asks for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Path
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount | None:
        """``SOURCE:TARGET[:ro|rw]``, read-write unless it says otherwise; None for what is not of that form.

        A path with a colon in it cannot be mounted this way. Whether the paths are absolute is for the caller.
        """
        parts = text.split(":")
        mode = parts.pop() if parts[-1] in ("ro", "rw") else "rw"
        if len(parts) != 2 or not all(parts):
            return None
        return cls(source=Path(parts[0]), target=parts[1], read_only=mode == "ro")

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def changeable(mount: Mount, mounts: Iterable[Mount]) -> bool:
    """Whether a container can change what a mount shows it: through the mount itself, or through another."""
    writable = [other.source for other in mounts if not other.read_only]
    return not mount.read_only or any(
        mount.source.is_relative_to(folder) or folder.is_relative_to(mount.source) for folder in writable
    )

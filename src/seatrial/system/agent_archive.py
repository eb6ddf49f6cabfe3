"""The agent as one file: a zipapp that any Python >= 3.8 runs, mounted read-only into containers."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import seatrial
from seatrial.system.zip_bytes import zip_bytes

#: What goes in, relative to the package. What is not listed is not there: the agent imports nothing else of ours.
_ROOMS = ("agent", "compat", "events", "probe", "findings")
_FILES = ("__init__.py", "frames.py", "input_frames.py")

_MAIN = "import sys\nfrom seatrial.agent.__main__ import main\nsys.exit(main())\n"


def build(directory: Path) -> Path:
    """The archive ``agent-<hash of its content>.pyz`` in ``directory``; made only when it is not there yet.

    It is written aside and renamed, so that a reader never meets half of it. Raises OSError.
    """
    contents = _contents()
    digest = hashlib.sha256()
    for name, data in contents.items():
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(data)
    path = directory / f"agent-{digest.hexdigest()[:16]}.pyz"
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=directory, prefix=".agent-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(zip_bytes(contents))
        Path(aside).chmod(0o644)  # mkstemp's 0600 would lock out a container that runs as another user
        Path(aside).rename(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return path


@functools.cache  # 100 files, which a plan for a cluster asks for twice; nobody may change what is given
def _contents() -> Mapping[str, bytes]:
    """Path in the archive → content, sorted by path."""
    package = Path(seatrial.__file__).parent
    files = list(_FILES)
    for room in _ROOMS:
        for folder, _, names in os.walk(package / room):
            inside = os.path.relpath(folder, package)
            files += [f"{inside}/{name}" for name in names if name.endswith((".py", ".json"))]
    contents = {f"seatrial/{file}": (package / file).read_bytes() for file in files}
    contents["pynvml.py"] = _pynvml()
    contents["__main__.py"] = _MAIN.encode()
    return dict(sorted(contents.items()))


def _pynvml() -> bytes:
    """nvidia-ml-py is this one pure file; it is taken as installed, licence text included."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("nvidia-ml-py is not installed: python -m pip install nvidia-ml-py")
    return Path(spec.origin).read_bytes()

"""The agent as one file: a zipapp that any Python >= 3.8 runs, mounted read-only into containers."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import marshal
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import seatrial
from seatrial.findings.catalogue import catalog_json

#: What goes in, relative to the package. What is not listed is not there: the agent imports nothing else of ours.
_ROOMS = ("agent", "common", "compat", "events", "probe", "findings")
_FILES = ("__init__.py", "frames.py", "input_frames.py")

_MAIN = "import sys\nfrom seatrial.agent.__main__ import main\nsys.exit(main())\n"


def build(directory: Path, *, compiled: bool = False) -> Path:
    """The archive ``agent-<hash of its content>.pyz`` in ``directory``; made only when it is not there yet.

    It is written aside and renamed, so that a reader never meets half of it. Raises OSError.

    Args:
        compiled: with each source what this Python makes of it, twice the size. A container's Python of the same
            version (3.11 and 3.11) then starts the agent with a quarter of the CPU; any other compiles the sources.
    """
    contents = _contents()
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER if compiled else b"")
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
            file.write(zip_bytes(_with_bytecode(contents) if compiled else contents))
        Path(aside).chmod(0o644)  # mkstemp's 0600 would lock out a container that runs as another user
        Path(aside).rename(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return path


def _with_bytecode(contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Add ``x.pyc`` to each ``x.py``, where zipimport looks first; it passes over one of another Python's.

    Said to be unchecked, or it would ask for the time of the source. Source: PEP 552; CPython's Lib/zipimport.py.
    """
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    both: dict[str, bytes] = {}
    for name, data in contents.items():
        both[name] = data
        if name.endswith(".py"):
            code = compile(data, name, "exec", dont_inherit=True)
            both[f"{name}c"] = head + importlib.util.source_hash(data) + marshal.dumps(code)
    return both


@functools.cache  # 100 files, which a plan for a cluster asks for twice; nobody may change what is given
def _contents() -> Mapping[str, bytes]:
    """Path in the archive → content, sorted by path."""
    package = Path(seatrial.__file__).parent
    files = list(_FILES)
    for part in _ROOMS:
        for folder, _, names in os.walk(package / part):
            inside = os.path.relpath(folder, package)
            if "__pycache__" not in inside:
                files += [f"{inside}/{name}" for name in names if name.endswith((".py", ".json"))]
    contents = {f"seatrial/{file}": (package / file).read_bytes() for file in files}
    contents["seatrial/findings/catalog.json"] = catalog_json()
    contents["pynvml.py"] = _pynvml()
    contents["__main__.py"] = _MAIN.encode()
    return dict(sorted(contents.items()))


def _pynvml() -> bytes:
    """nvidia-ml-py is this one pure file; it is taken as installed, licence text included."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("nvidia-ml-py is not installed: python -m pip install nvidia-ml-py")
    return Path(spec.origin).read_bytes()


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

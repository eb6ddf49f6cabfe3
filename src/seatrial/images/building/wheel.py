"""Our own wheel for images: the training library and the recipes, without the host side and its dependencies.

Made from the installed package's files with the standard library alone: no network, no build back end. The bytes
depend on nothing but the files' contents. Format: https://packaging.python.org/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import seatrial
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.zip_bytes import zip_bytes

WHEEL_NAME = f"seatrial-{seatrial.__version__}-py3-none-any.whl"

_PACKAGE = Path(seatrial.__file__).parent
_DIST_INFO = f"seatrial-{seatrial.__version__}.dist-info"
_ROOMS = ("events", "export", "models", "recipes", "serve", "train")
_FILES = ("__init__.py",)

_IMPORTS = re.compile(
    r"^\s*(?:from seatrial\.(\w+)[\w.]* import |from seatrial import ([\w, ]+)|import seatrial\.(\w+))", re.MULTILINE
)


def wheel_bytes() -> bytes:
    """The wheel, ready for ``pip install --no-deps``. It declares no dependencies: the image's recipe names them."""
    contents = {f"seatrial/{path.relative_to(_PACKAGE)}": path.read_bytes() for path in _sources()}
    contents[f"{_DIST_INFO}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: seatrial\nVersion: {seatrial.__version__}\n"
        "Summary: Training library and recipes of seatrial, without its host side\nRequires-Python: >=3.10\n"
    ).encode()
    contents[f"{_DIST_INFO}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: seatrial\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{_DIST_INFO}/RECORD"
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in contents.items()]
    contents[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    return zip_bytes(contents)


def write_wheel(folder: Path) -> Path:
    """The wheel as a file of this folder, named by its content; for ready images, which get it mounted."""
    data = wheel_bytes()
    path = folder / f"recipes-{hashlib.sha256(data).hexdigest()[:12]}.whl"
    if not path.exists():
        make_folder(folder)
        write_atomically(path, data)
    return path


def _sources() -> list[Path]:
    """Files of the rooms that go in, and the modules directly under ``seatrial`` that they import."""
    inside = [
        path
        for room in _ROOMS
        for path in sorted((_PACKAGE / room).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    files = [_PACKAGE / name for name in _FILES]
    imported = {name for path in inside if path.suffix == ".py" for name in _our_modules(path)}
    shared = (_PACKAGE / f"{name}.py" for name in sorted(imported))
    return [*files, *(path for path in shared if path.is_file() and path not in files), *inside]


def _our_modules(path: Path) -> set[str]:
    """``{"errors"}`` for ``from seatrial.errors import …`` or ``from seatrial import errors`` anywhere in the file.

    By their lines: parsing all files takes 150 ms of every plan.
    """
    found = set()
    for inside, several, plain in _IMPORTS.findall(path.read_text(encoding="utf-8")):
        found |= {name.split()[0] for name in several.split(",")} if several else {inside or plain}
    return found


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

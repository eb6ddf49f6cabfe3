"""Pack the agent as a zipapp that any Python >= 3.8 runs, and copy the Python that runs it.

Both are mounted read-only, so no package and no layer of an image can replace the recorder of the evidence. That Python
is the command line's own, copied with everything that it loads (docs/decisions.md, 0096).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import json
import lzma
import marshal
import os
import platform
import shutil
import sys
import tempfile
import tokenize
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import seatrial
from seatrial.errors import SeatrialError
from seatrial.findings.catalogue import IN_RUN, catalog_json
from seatrial.system import command
from seatrial.system.files import make_folder, write_atomically

if TYPE_CHECKING:
    from concurrent.futures import Future

#: Contents of the archive, relative to the package. The agent imports nothing else of seatrial.
_ROOMS = ("agent", "common", "compat", "events", "probe", "findings")
_FILES = ("__init__.py", "frames.py")

_MAIN = "import sys\nfrom seatrial.agent.__main__ import main\nsys.exit(main())\n"

_CATALOG = "seatrial/findings/catalog.json"
#: The archive for pods: an archive within, as one xz stream, without files that pods never run: a third of the size.
_WITHIN = "agent.xz"
_UNPACK = Path(__file__).with_name("unpack.py.txt").read_text("utf-8") + _MAIN
#: The first moment a zip can store (APPNOTE.TXT 4.4.6, MS-DOS date). Every entry gets it.
_DATE = (1980, 1, 1, 0, 0, 0)
#: Libraries are copied and a hundred modules written; a second on a fast disk.
_COPY_TIMEOUT_S = 120.0


def build_for_pods(directory: Path, stand_ins: Collection[str]) -> Path:
    """Make the archive that fits into a ConfigMap which ``kubectl apply`` takes. Raises DiskError.

    It has no docstrings, comments, sources of known failures and layers that no program prints, and no driver of
    ``tune``. Lines keep their numbers. ``stand_ins``: packages of seatrial.compat that the run needs.
    """
    form = Path(__file__).read_bytes() + ",".join(stand_ins).encode()
    return _written(directory, _contents(), form, lambda _: _pod_archive(tuple(stand_ins)))


@functools.cache
def _pod_archive(stand_ins: tuple[str, ...]) -> bytes:
    text = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "pb": 0, "nice_len": 273}]
    stream = lzma.compress(zip_bytes(_lean(_contents(), stand_ins), zipfile.ZIP_STORED), filters=text)
    return zip_bytes({"__main__.py": _UNPACK.encode(), _WITHIN: stream}, zipfile.ZIP_STORED)


def _lean(whole: Mapping[str, bytes], stand_ins: Collection[str]) -> Mapping[str, bytes]:
    catalog = json.loads(whole[_CATALOG])
    for layer, tables in catalog.items():
        if layer != "digest":
            kept = tables if layer in (*IN_RUN, "running") else {}
            catalog[layer] = {id: {**table, "sources": []} for id, table in kept.items()}
    tune = {name for name in whole if name.startswith(("seatrial/agent/tune/", "seatrial/common/paired"))}
    unused = tune - {"seatrial/agent/tune/__init__.py"}
    if not stand_ins:
        unused |= {name for name in whole if name.startswith("seatrial/compat/")}
    used = {name: data for name, data in whole.items() if name not in unused}
    lean = {name: _without_prose(data) if name.endswith(".py") else data for name, data in used.items()}
    return {**lean, _CATALOG: json.dumps(catalog, ensure_ascii=False, separators=(",", ":")).encode()}


def _without_prose(source: bytes) -> bytes:
    """Return the code without docstrings and comments, on the same lines; a licence at the top stays."""
    lines = source.decode().split("\n")
    code = next((number for number, line in enumerate(lines) if not line.startswith("#")), 0)
    for node in ast.walk(ast.parse(source)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            assert text.end_lineno is not None and text.end_col_offset is not None
            before = lines[text.lineno - 1].encode()[: text.col_offset].decode()
            behind = lines[text.end_lineno - 1].encode()[text.end_col_offset :].decode()
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
            lines[text.lineno - 1] = f"{before}''{behind}"
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and row > code:
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines).encode()


def build(directory: Path, *, compiled: bool = False) -> Path:
    """Build the archive ``agent-<hash of its content>.pyz`` in ``directory``, unless it is there; return its path.

    It is written aside and renamed, so that a reader never meets half of it. Raises DiskError. ``compiled``: with this
    Python's bytecode, twice the size: a container's Python of this version starts the agent with a quarter of the CPU.
    """
    if not compiled:
        return _written(directory, _contents(), b"", zip_bytes)
    return _written(directory, _contents(), importlib.util.MAGIC_NUMBER, lambda both: zip_bytes(_with_bytecode(both)))


def _written(
    directory: Path, contents: Mapping[str, bytes], form: bytes, pack: Callable[[Mapping[str, bytes]], bytes]
) -> Path:
    digest = hashlib.sha256(form)
    for name, data in contents.items():
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(data)
    path = directory / f"agent-{digest.hexdigest()[:16]}.pyz"
    if not path.exists():
        make_folder(directory)
        write_atomically(path, pack(contents))
    return path


def _with_bytecode(contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Add ``x.pyc`` to each ``x.py``, where zipimport looks first; it passes over one of another Python's.

    Each is marked unchecked: else zipimport would compare times of the source. Source: PEP 552; Lib/zipimport.py.
    """
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    both: dict[str, bytes] = {}
    for name, data in contents.items():
        both[name] = data
        if name.endswith(".py"):
            code = compile(data, name, "exec", dont_inherit=True)
            both[f"{name}c"] = head + importlib.util.source_hash(data) + marshal.dumps(code)
    return both


@functools.cache  # 100 files, which a plan for a cluster needs twice; nobody may change what is given
def _contents() -> Mapping[str, bytes]:
    """Return path in the archive → content, sorted by path."""
    package = Path(seatrial.__file__).parent
    files = list(_FILES)
    for part in _ROOMS:
        for folder, _, names in os.walk(package / part):
            inside = os.path.relpath(folder, package)
            if "__pycache__" not in inside:
                files += [f"{inside}/{name}" for name in names if name.endswith((".py", ".json"))]
    contents = {f"seatrial/{file}": (package / file).read_bytes() for file in files}
    contents[_CATALOG] = catalog_json()
    contents["pynvml.py"] = pynvml_source()
    contents["__main__.py"] = _MAIN.encode()
    return dict(sorted(contents.items()))


def pynvml_source() -> bytes:
    """Read nvidia-ml-py, which is this one pure file; it is taken as installed, licence text included."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("nvidia-ml-py is not installed: python -m pip install nvidia-ml-py")
    return Path(spec.origin).read_bytes()


def zip_bytes(contents: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack path in the archive → content as one zip; in the mapping's order, every file readable by all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = compression
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


class Interpreter(NamedTuple):
    """A copy. ``words``: its version, its source and the digest of its content."""

    folder: Path
    words: str


def start_copying(directory: Path, archive: Path) -> Future[Interpreter | None]:
    """Run build_interpreter in a thread: the first copy takes as long as the answers of a package index."""
    from concurrent.futures import ThreadPoolExecutor  # most plans have nothing to copy

    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(build_interpreter, directory, archive)
    finally:
        threads.shutdown(wait=False)


def build_interpreter(directory: Path, archive: Path) -> Interpreter | None:
    """Return the copy in ``directory``, made if missing or old; None: no Linux with glibc. Raises DiskError."""
    if sys.platform != "linux":
        return None
    program = Path(__file__).with_name("interpreter_program.py")
    made_of = [os.path.realpath("/proc/self/exe"), str(archive), program.read_text()]
    index = directory / f"python-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(index.read_bytes())
        if kept["sources"] == _states(kept["sources"]) and (directory / kept["folder"]).is_dir():
            return Interpreter(directory / kept["folder"], kept["words"])
    aside = Path(tempfile.mkdtemp(dir=directory, prefix=".python-"))
    try:
        call = [made_of[0], "-I", "-S", str(program), str(archive), str(aside)]
        sources = json.loads(command.check(call, timeout_s=_COPY_TIMEOUT_S).stdout)
        digest = _digest(aside)
        folder = directory / f"python-{digest[:16]}"
        aside.chmod(0o755)  # mkdtemp's 0700 would lock out a container that runs as another user
        try:
            aside.rename(folder)
        except OSError:  # the same copy is there
            if not folder.is_dir():
                raise
    except (SeatrialError, ValueError):
        return None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    words = f"CPython {platform.python_version()} of the command line, sha256:{digest}"
    kept = {"folder": folder.name, "words": words, "sources": _states(sources)}
    write_atomically(index, json.dumps(kept).encode())
    return Interpreter(folder, words)


def _states(paths: object) -> dict[str, list[int]]:
    """Return path → time of the last change and size: a library that the system has updated is copied again."""
    assert isinstance(paths, (list, dict))
    found = {path: Path(path).stat() for path in paths}
    return {path: [state.st_mtime_ns, state.st_size] for path, state in found.items()}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(b"%s\0%d\0" % (str(path.relative_to(folder)).encode(), path.stat().st_size))
        digest.update(path.read_bytes())
    return digest.hexdigest()

"""``python -I -S interpreter_program.py AGENT_ARCHIVE FOLDER``: copy this Python, and what the agent loads of it.

It prints the programs and libraries that it copied, as JSON. Linux with glibc only; see system/agent_archive.py.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import json
import marshal
import os
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: Modules that compiled code imports, ``os.wait4`` for one, and codecs, which are found by a name that is computed.
ALWAYS = (
    *("_strptime", "ctypes._endian", "linecache", "resource", "runpy", "threading", "tokenize", "traceback"),
    "unicodedata",
    *(f"encodings.{name}" for name in ("ascii", "cp437", "idna", "latin_1", "punycode", "utf_8", "utf_8_sig")),
    "warnings",
)

#: Parts of the standard library that others import only in functions which the agent does not call.
NEVER = frozenset(("asyncio", "doctest", "multiprocessing", "pdb", "pydoc", "site", "test", "tkinter", "unittest"))

#: Libraries that a driver needs, and that the C library loads by name when a thread ends or a host is resolved.
LIBRARIES = (
    *("libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libnss_dns.so.2", "libpthread.so.0", "libresolv.so.2"),
    "librt.so.1",
)

#: Places in the image where the loader and the C library look for code and settings → names of the same length in the
#: kernel's own file system, where none of them can be.
ELSEWHERE = ((b"/etc/ld.so", b"/sys/ld.so"), (b"/usr/lib", b"/sys/lib"), (b"\0/lib", b"\0/sys"))
#: A statement, or a line of prose that looks like one, which costs a few more modules.
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n;#]+)", re.MULTILINE)

PT_LOAD, PT_DYNAMIC, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 2, 5, 14, 15, 29  # Source: elf.h
DT_IGNORED = 0x6FFFF000  # in the range of an operating system's own tags, and none of Linux's
#: A .pyc that is never compared with its source. Source: PEP 552.
PYC = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)


def main(archive: str, to: str) -> None:
    """Write ``bin/python3``, ``lib`` with libraries and the loader ``ld.so``, and in it the standard library."""
    folder, program = Path(to), Path("/proc/self/exe").resolve()
    standard = folder / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    extensions = standard / "lib-dynload"
    extensions.mkdir(parents=True)
    for name, origin in sorted(needed(archive).items()):
        if origin.suffix == ".py":
            place = standard.joinpath(*name.split("."), *["__init__"] * (origin.name == "__init__.py"))
            code = importlib.machinery.SourceFileLoader(name, str(origin)).get_code(name)
            write(place.with_name(f"{place.name}.pyc"), PYC + marshal.dumps(code))
        else:
            __import__(name)  # so that its libraries are loaded
            write(extensions / origin.name, trimmed(origin.read_bytes()))
    for name in LIBRARIES:
        ctypes.CDLL(name)
    write(folder / "bin" / "python3", trimmed(program.read_bytes()), 0o755)
    sources = [str(program)]
    for path in loaded():
        data = trimmed(Path(path).read_bytes())
        name = soname(data)
        if name:
            is_loader = name.startswith("ld-linux")
            data = elsewhere(data) if is_loader or name.startswith("libc.") else data
            write(folder / "lib" / ("ld.so" if is_loader else name), data, 0o755)
            sources.append(path)
    (folder / "lib" / "ld.so").stat()
    sys.stdout.write(json.dumps(sources))


def needed(archive: str) -> dict[str, Path]:
    """Return name → file of each standard module that the archive's modules, or those, may import."""
    with zipfile.ZipFile(archive) as file:
        texts = [file.read(name) for name in file.namelist() if name.endswith(".py")]
    waiting = [*ALWAYS, *(name for text in texts for name in imports(text, ""))]
    seen: dict[str, Path | None] = {}
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or top in NEVER or top not in sys.stdlib_module_names:
            continue
        seen[name] = origin = file_of(name)
        package = name.rpartition(".")[0]
        waiting += [package] if package else []
        if origin is not None and origin.suffix == ".py":
            waiting += imports(origin.read_bytes(), name if origin.name == "__init__.py" else package)
    return {name: origin for name, origin in seen.items() if origin is not None}


def file_of(name: str) -> Path | None:
    """Return a module's file; None for one that is compiled in, and for the name of a missing module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    frozen = Path(os.__file__).parent.joinpath(*name.split("."))  # those have a file, too
    return next((path for path in (Path(spec.origin or "/"), frozen.with_suffix(".py")) if path.is_file()), None)


def imports(text: bytes, package: str) -> Iterator[str]:
    """Yield the names that a module imports, in functions too, and names of others that could be modules."""
    for match in IMPORT.finditer(text.decode("utf-8", "replace")):
        base, names = match.group(1) or "", re.findall(r"[\w.]+", match.group(2))
        level = len(base) - len(base.lstrip("."))
        above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        base = ".".join(filter(None, [*above, base.lstrip(".")]))
        yield from [base, *(f"{base}.{name}" for name in names)] if base else names


def loaded() -> list[str]:
    """Return the files with code of this process."""
    lines = [line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({words[5].strip() for words in lines if "x" in words[1] and words[-1].startswith("/")})


def trimmed(data: bytes) -> bytes:
    """Return an ELF file without debug sections, and without folders of its own to look for libraries in."""
    made = bytearray(data[: max(offset + size for offset, _, size in segments(data, PT_LOAD))])
    struct.pack_into("<Q", made, 40, 0)  # e_shoff
    struct.pack_into("<HHH", made, 58, 0, 0, 0)  # e_shentsize, e_shnum, e_shstrndx
    for at, tag, _ in dynamic(data):
        if tag in (DT_RPATH, DT_RUNPATH):
            struct.pack_into("<q", made, at, DT_IGNORED)
    return bytes(made)


def elsewhere(data: bytes) -> bytes:
    for place, other in ELSEWHERE:
        data = data.replace(place, other)
    return data


def soname(data: bytes) -> str:
    """Return the name by which others need this library; "" for a program or an extension module."""
    values = {tag: value for _, tag, value in dynamic(data)}
    for offset, start, size in segments(data, PT_LOAD):
        if DT_SONAME in values and start <= values[DT_STRTAB] < start + size:
            at = offset + values[DT_STRTAB] - start + values[DT_SONAME]
            return data[at : data.index(b"\0", at)].decode()
    return ""


def dynamic(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (place in the file, tag, value) of each entry of the dynamic section."""
    for offset, _, size in segments(data, PT_DYNAMIC):
        for at in range(offset, offset + size, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            yield at, tag, value


def segments(data: bytes, kind: int) -> Iterator[tuple[int, int, int]]:
    """Yield (place in the file, address, size) of the segments of a kind. 64 bits, little-endian."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, number = struct.unpack_from("<HH", data, 54)
    for at in range(table, table + size * number, size):
        found, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if found == kind:
            yield offset, address, length


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


if __name__ == "__main__":
    main(*sys.argv[1:])

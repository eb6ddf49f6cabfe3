"""A shared library's headers, dynamic symbols and their versions, read from its bytes. 64-bit little-endian only."""

from __future__ import annotations

import mmap
import struct
from collections import namedtuple
from pathlib import Path
from typing import Union

Data = Union[bytes, bytearray, mmap.mmap]

Segment = namedtuple("Segment", "type flags offset vaddr paddr filesz memsz align")
Section = namedtuple("Section", "name_at type flags addr offset size link info align entsize")
#: ``version`` is None for an unversioned symbol; ``default`` is False for ``name@VERSION``, True for ``name@@VERSION``.
Symbol = namedtuple("Symbol", "name kind binding size section version default")

PT_LOAD, PT_DYNAMIC, PT_PHDR = 1, 2, 6
SHT_NOBITS, SHF_ALLOC = 8, 2
DT_NEEDED, DT_SONAME = 1, 14
STT_OBJECT, STT_FUNC, STT_TLS, STT_IFUNC = 1, 2, 6, 10

_PHDR, _SHDR = "<IIQQQQQQ", "<IIQQQQIIQQ"
PHDR_BYTES, SHDR_BYTES = 56, 64


def is_elf(path: Path) -> bool:
    """A 64-bit little-endian ELF file."""
    with path.open("rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"


def mapped(path: Path) -> Elf:
    """The library's headers, the rest of it unread."""
    with path.open("rb") as file:
        return Elf(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Elf:
    """One file's headers. ``data`` is not changed."""

    def __init__(self, data: Data) -> None:
        self.data = data
        fields = struct.unpack_from("<16sHHIQQQIHHHHHH", data, 0)
        self.type, self.machine = fields[1], fields[2]
        self.phoff, self.shoff = fields[5], fields[6]
        phnum, shnum, self.shstrndx = fields[10], fields[12], fields[13]
        self.segments: list[Segment] = []
        for at in range(phnum):
            kind, flags, *rest = struct.unpack_from(_PHDR, data, self.phoff + at * PHDR_BYTES)
            self.segments.append(Segment(kind, flags, *rest))
        self.sections = [Section(*struct.unpack_from(_SHDR, data, self.shoff + at * SHDR_BYTES)) for at in range(shnum)]

    def section_name(self, section: Section) -> str:
        return self._text(self.sections[self.shstrndx].offset + section.name_at)

    def section(self, name: str) -> Section | None:
        return next((each for each in self.sections if self.section_name(each) == name), None)

    def _text(self, at: int) -> str:
        return bytes(self.data[at : self.data.find(b"\0", at)]).decode("utf-8", "replace")

    def dynamic(self, tag: int) -> list[int]:
        """Values of one tag of the dynamic section."""
        table = next((each for each in self.segments if each.type == PT_DYNAMIC), None)
        if table is None:
            return []
        pairs = struct.iter_unpack("<qQ", bytes(self.data[table.offset : table.offset + table.filesz // 16 * 16]))
        return [value for key, value in pairs if key == tag]

    def dynamic_names(self, tag: int) -> list[str]:
        """The same for tags whose value is a place in .dynstr, e.g. DT_NEEDED."""
        strings = self.section(".dynstr")
        return [self._text(strings.offset + value) for value in self.dynamic(tag)] if strings else []

    def symbols(self) -> list[Symbol]:
        """The dynamic symbols, undefined ones too (``section`` 0)."""
        table, strings = self.section(".dynsym"), self.section(".dynstr")
        if table is None or strings is None:
            return []
        versions = self.section(".gnu.version")
        names = self._version_names()
        found = []
        rows = struct.iter_unpack("<IBBHQQ", bytes(self.data[table.offset : table.offset + table.size]))
        for at, (name_at, info, _, section, _, size) in enumerate(rows):
            if at == 0:
                continue
            number = 0
            if versions is not None:
                (number,) = struct.unpack_from("<H", self.data, versions.offset + 2 * at)
            name, version = self._text(strings.offset + name_at), names.get(number & 0x7FFF)
            found.append(Symbol(name, info & 0xF, info >> 4, size, section, version, not number & 0x8000))
        return found

    def _version_names(self) -> dict[int, str]:
        """Version index → name, of the versions that this library defines (the base one, its soname, left out)."""
        section, strings = self.section(".gnu.version_d"), self.section(".dynstr")
        names: dict[int, str] = {}
        at = section.offset if section and strings else 0
        while at and strings:
            _, flags, index, _, _, aux, following = struct.unpack_from("<HHHHIII", self.data, at)
            (name_at,) = struct.unpack_from("<I", self.data, at + aux)
            if not flags & 1:  # VER_FLG_BASE
                names[index] = self._text(strings.offset + name_at)
            at = at + following if following else 0
        return names

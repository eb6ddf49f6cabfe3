"""Take ranges out of a shared library's file without moving anything in memory.

A library is mapped segment by segment, each from its own place in the file. So a page that holds only zeros needs no
place in the file: the segment is cut in two around it, and the first part's memory size is stretched over the gap,
which the loader then fills with zeros, as it does for .bss. Addresses stay, so no relocation and no pointer changes.
What is mapped nowhere (symbol tables, debug information) is left out altogether. docs/decisions.md, 0012.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import BinaryIO, Tuple

from seatrial.images.slim.program.elf import (
    _PHDR,
    PHDR_BYTES,
    PT_LOAD,
    PT_PHDR,
    SHDR_BYTES,
    SHF_ALLOC,
    SHT_NOBITS,
    Elf,
    Section,
    Segment,
)

PAGE = 4096

#: Cuts a file. Each costs two mappings, of which Linux allows a process 65,530 (vm.max_map_count). For one architecture
#: torch 2.13's libraries take 8,900 cuts in all, 2,800 the most, and get back 96 % of their unneeded device code; with
#: 1,500 a file it is 94 %. The rest lies in pages that are partly used.
MOST_CUTS = 3000

Range = Tuple[int, int]


def compact(path: Path, empty: list[Range]) -> tuple[int, int]:
    """Rewrite the file without what is not mapped; (bytes of symbols and debug information gone, of cut data saved).

    Args:
        empty: file ranges whose bytes read as zeros from now on; they must lie in loaded, mapped data.

    The file keeps its mode and owner; it is written to a new file and renamed. It is read through a private map, so
    that only pages that become zeros cost memory.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        elf = Elf(data)
        kept = _kept_sections(elf)
        if not empty and len(kept) == len(elf.sections):
            return 0, 0
        for start, end in empty:
            data[start:end] = bytes(end - start)
        symbols = sum(each.size for at, each in enumerate(elf.sections) if at not in kept and each.type != SHT_NOBITS)
        written = path.with_name(path.name + ".slim")
        try:
            with written.open("w+b", buffering=0) as out:
                _rewrite(elf, _gaps(elf, empty), kept, out)
            saved = len(data) - written.stat().st_size
            if saved <= 0 and not empty:
                return 0, 0
            os.chmod(str(written), path.stat().st_mode & 0o7777)
            os.replace(str(written), str(path))
        finally:
            if written.exists():
                written.unlink()
    return (symbols, saved - symbols) if empty else (saved, 0)


def _kept_sections(elf: Elf) -> list[int]:
    """Indices. Symbol tables of relocatable files and of the linker go; names of sections stay."""
    kept = []
    for at, section in enumerate(elf.sections):
        mapped = section.flags & SHF_ALLOC
        if at == 0 or at == elf.shstrndx or mapped:
            kept.append(at)
    return kept


def _gaps(elf: Elf, empty: list[Range]) -> list[Range]:
    """The whole pages inside the empty ranges, as addresses; the longest MOST_CUTS of them."""
    found: list[Range] = []
    for segment in (each for each in elf.segments if each.type == PT_LOAD):
        shift = segment.vaddr - segment.offset
        for start, end in _joined(empty):
            low = max(start, segment.offset + PAGE) + shift  # a first page stays, to hang the gap on
            high = min(end, segment.offset + segment.filesz) + shift
            low, high = -(-low // PAGE) * PAGE, high // PAGE * PAGE
            if high - low >= PAGE:
                found.append((low, high))
    longest = sorted(found, key=lambda gap: gap[0] - gap[1])[:MOST_CUTS]
    return sorted(longest)


def _joined(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _rewrite(elf: Elf, gaps: list[Range], kept: list[int], out: BinaryIO) -> None:
    loads: list[Segment] = []
    with memoryview(elf.data) as whole:
        for segment in (each for each in elf.segments if each.type == PT_LOAD):
            for piece in _pieces(segment, gaps):
                old = segment.offset + piece.vaddr - segment.vaddr
                at = out.tell() + (piece.vaddr - out.tell()) % PAGE
                loads.append(piece._replace(offset=at))
                out.seek(at)
                with whole[old : old + piece.filesz] as bits:
                    _write(out, bits)
        _pad(out, PAGE)  # past the last page that is mapped: the loader zeroes the rest of .bss's first page
        sections = _section_headers(elf, kept, loads, out)
    _pad(out, 8)
    shoff, phoff = out.tell(), out.tell() + len(sections)
    _write(out, sections)
    others = [_moved(each, loads) for each in elf.segments if each.type not in (PT_LOAD, PT_PHDR)]
    table = sorted(loads, key=lambda each: each.vaddr) + others
    _write(out, b"".join(struct.pack(_PHDR, *each) for each in table))
    out.seek(32)
    _write(out, struct.pack("<QQ", phoff, shoff))
    out.seek(54)
    _write(out, struct.pack("<HHHHH", PHDR_BYTES, len(table), SHDR_BYTES, len(kept), kept.index(elf.shstrndx)))


def _write(out: BinaryIO, data: bytes | bytearray | memoryview) -> None:
    """All of it: one write takes at most 2 GiB."""
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


def _pad(out: BinaryIO, align: int) -> None:
    _write(out, bytes(-out.tell() % align))


def _pieces(segment: Segment, gaps: list[Range]) -> list[Segment]:
    """The segment around the gaps in it; each piece's memory reaches to the next one."""
    start, file_end = segment.vaddr, segment.vaddr + segment.filesz
    memory_end = segment.vaddr + segment.memsz
    pieces = []
    for low, high in gaps:
        if start < low and high <= file_end:
            pieces.append(_piece(segment, start, low, high))
            start = high
    if start < file_end or memory_end > start:
        pieces.append(_piece(segment, start, file_end, memory_end))
    return pieces


def _piece(segment: Segment, start: int, file_end: int, memory_end: int) -> Segment:
    filesz, memsz = file_end - start, memory_end - start
    return segment._replace(vaddr=start, paddr=start, filesz=filesz, memsz=memsz, align=PAGE, offset=0)


def _moved(segment: Segment, loads: list[Segment]) -> Segment:
    """A segment that describes a part of a loaded one (dynamic section, notes, relro), at its new place."""
    if segment.filesz == 0 or segment.vaddr == 0:
        return segment
    return segment._replace(offset=_offset_of(segment.vaddr, loads))


def _offset_of(address: int, loads: list[Segment]) -> int:
    """Place in the new file of an address; in a gap, where the gap is."""
    within = (each for each in loads if each.vaddr <= address < each.vaddr + max(each.memsz, 1))
    return next((int(each.offset + min(address - each.vaddr, each.filesz)) for each in within), 0)


def _section_headers(elf: Elf, kept: list[int], loads: list[Segment], out: BinaryIO) -> bytes:
    """The headers. What is not mapped is appended to ``out``; a cut section is marked as without bits."""
    new_index = {old: new for new, old in enumerate(kept)}
    headers = bytearray()
    for at in kept:
        section: Section = elf.sections[at]
        if at and section.flags & SHF_ALLOC:
            new = _mapped_header(section, loads)
        elif at and section.type != SHT_NOBITS:
            _pad(out, 8)
            new = section._replace(offset=out.tell())
            _write(out, elf.data[section.offset : section.offset + section.size])
        else:
            new = section
        new = new._replace(link=new_index.get(new.link, 0))
        headers += struct.pack("<IIQQQQIIQQ", *new)
    return bytes(headers)


def _mapped_header(section: Section, loads: list[Segment]) -> Section:
    offset = _offset_of(section.addr, loads)
    if section.type == SHT_NOBITS or not section.size:
        return section._replace(offset=offset)
    whole = _offset_of(section.addr + section.size - 1, loads) - offset == section.size - 1
    return section._replace(offset=offset, type=section.type if whole else SHT_NOBITS)

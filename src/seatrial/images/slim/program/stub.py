"""A stand-in for a shared library: same soname, same symbols and versions; a call ends the process and prints why.

Written byte by byte: the image that is slimmed has no linker. x86-64 Linux.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from seatrial.images.slim.program.elf import STT_FUNC, STT_IFUNC, STT_OBJECT, STT_TLS, Symbol

X86_64 = 62
_PAGE = 4096

#: Bytes of a function.
_ENTRY = 32

#: Prints rsi[0:rdx] to standard error, then raises SIGABRT in this process: write(2, …); kill(getpid(), SIGABRT).
_DIE = bytes.fromhex(
    "bf02000000 b801000000 0f05"  # mov edi,2; mov eax,1; syscall
    " b827000000 0f05"  # mov eax,39; syscall
    " 89c7 be06000000 b83e000000 0f05 0f0b".replace(" ", "")  # mov edi,eax; mov esi,6; mov eax,62; syscall; ud2
)


def stub_library(soname: str, symbols: list[Symbol], why: str, answers: Mapping[str, tuple[int, ...]]) -> bytes:
    """The library's bytes.

    Args:
        symbols: those that the real library defines. Functions end the process; objects are zeros of their size.
        why: the sentence that a call prints before it ends the process; the function's name stands in front.
        answers: functions that answer instead (versions.py), and what.
    """
    symbols = [each for each in symbols if each.section and each.kind != STT_TLS and each.name]
    strings, at_of = _strings([soname, *(each.name for each in symbols), *(v for v in _versions(symbols))])
    text, function_at = _code(symbols, why, answers)
    image = _Image()
    dynsym_rows, versym = _symbol_rows(symbols, at_of, _versions(symbols))
    image.add("hash", _hash([each.name for each in symbols]), 8)
    image.add("dynstr", strings, 1)
    image.add("versym", versym, 2)
    image.add("verdef", _verdef(soname, _versions(symbols), at_of), 8)
    image.reserve("dynsym", 24 * (len(symbols) + 1), 8)
    image.segment_end("read")
    image.add("text", text, 16)
    image.segment_end("execute")
    image.reserve("dynamic", 16 * 11, 16)
    image.segment_end("write")
    objects = _object_places(symbols, image.end)
    places = {**objects, **{place: image.at["text"] + at for place, at in function_at.items()}}
    values = [places.get(place, 0) for place in range(len(symbols))]
    image.fill("dynsym", _dynsym(dynsym_rows, values))
    tags = [
        (14, at_of[soname]), (4, image.at["hash"]), (5, image.at["dynstr"]), (10, len(strings)),
        (6, image.at["dynsym"]), (11, 24), (0x6FFFFFF0, image.at["versym"]), (0x6FFFFFFC, image.at["verdef"]),
        (0x6FFFFFFD, len(_versions(symbols)) + 1), (0, 0), (0, 0),
    ]  # fmt: skip
    image.fill("dynamic", b"".join(struct.pack("<qQ", tag, value) for tag, value in tags))
    ends = [at + symbols[place].size for place, at in objects.items()]
    zeros = max(ends, default=image.end) - image.end
    return image.finish(zeros)


def _versions(symbols: list[Symbol]) -> list[str]:
    return sorted({each.version for each in symbols if each.version})


def _strings(texts: list[str]) -> tuple[bytes, dict[str, int]]:
    data, at_of = bytearray(b"\0"), {}
    for text in texts:
        if text not in at_of:
            at_of[text] = len(data)
            data += text.encode() + b"\0"
    return bytes(data), at_of


def _code(symbols: list[Symbol], why: str, answers: Mapping[str, tuple[int, ...]]) -> tuple[bytes, dict[int, int]]:
    """(machine code and messages, symbol's place → its offset)."""
    functions = [place for place, each in enumerate(symbols) if each.kind in (STT_FUNC, STT_IFUNC, 0)]
    data_at = len(_DIE) + _ENTRY * len(functions)
    code, data, at_of = bytearray(_DIE), bytearray(), {}
    for number, place in enumerate(functions):
        here = len(_DIE) + _ENTRY * number
        at_of[place] = here
        to_data, answer = data_at + len(data) - here, answers.get(symbols[place].name)
        if answer is None:
            message = f"seatrial: {symbols[place].name} was called, but {why}\n".encode()
            row, data = _dying(to_data, len(message), -here), data + message
        else:
            row, data = _answering(to_data, len(answer)), data + struct.pack(f"<{len(answer)}i", *answer)
        code += row + b"\x90" * (_ENTRY - len(row))
    return bytes(code + data), at_of


def _dying(to_message: int, length: int, to_die: int) -> bytes:
    """Lea rsi,[rip+message]; mov edx,length; jmp die. Distances are counted from this code's first byte."""
    row = b"\x48\x8d\x35" + struct.pack("<i", to_message - 7) + b"\xba" + struct.pack("<I", length)
    return row + b"\xe9" + struct.pack("<i", to_die - 17)


def _answering(to_values: int, count: int) -> bytes:
    """One value: ``f(int *out)``. Several: ``f(int which, int *out)``, 1 if the value does not exist. Else 0."""
    if count == 1:  # lea rax,[rip+values]; mov eax,[rax]; mov [rdi],eax; xor eax,eax; ret
        return b"\x48\x8d\x05" + struct.pack("<i", to_values - 7) + bytes.fromhex("8b00 8907 31c0 c3".replace(" ", ""))
    # cmp edi,count-1; ja none; lea rax,[rip+values]; mov edi,edi; mov eax,[rax+rdi*4]; mov [rsi],eax; xor eax,eax; ret
    row = b"\x83\xff" + bytes([count - 1]) + b"\x77\x11\x48\x8d\x05" + struct.pack("<i", to_values - 12)
    return row + bytes.fromhex("89ff 8b04b8 8906 31c0 c3 b801000000 c3".replace(" ", ""))  # none: mov eax,1; ret


def _symbol_rows(
    symbols: list[Symbol], at_of: dict[str, int], versions: list[str]
) -> tuple[list[tuple[int, int, int, int]], bytes]:
    """([(name, info, section, size)], .gnu.version)."""
    rows, numbers = [], [0]
    for each in symbols:
        kind = STT_FUNC if each.kind == STT_IFUNC else each.kind
        rows.append((at_of[each.name], (each.binding or 1) << 4 | kind, 1, each.size))
        number = versions.index(each.version) + 2 if each.version else 1
        numbers.append(number | (0 if each.default else 0x8000))
    return rows, struct.pack(f"<{len(numbers)}H", *numbers)


def _dynsym(rows: list[tuple[int, int, int, int]], values: list[int]) -> bytes:
    table = bytearray(24)
    for (name, info, section, size), value in zip(rows, values):
        table += struct.pack("<IBBHQQ", name, info, 0, section if value else 0xFFF1, value, size)
    return bytes(table)


def _object_places(symbols: list[Symbol], start: int) -> dict[int, int]:
    """Addresses of data symbols, one behind the other in zeroed memory."""
    places, at = {}, -(-start // 64) * 64
    for place, each in enumerate(symbols):
        if each.kind == STT_OBJECT and each.size:
            places[place] = at
            at += -(-each.size // 64) * 64
    return places


def _hash(names: list[str]) -> bytes:
    """System V hash table: every loader reads it."""
    buckets = max(1, len(names) // 2)
    heads, chains = [0] * buckets, [0] * (len(names) + 1)
    for place, name in enumerate(names, 1):
        bucket = _sysv(name) % buckets
        chains[place], heads[bucket] = heads[bucket], place
    return struct.pack(f"<II{buckets}I{len(chains)}I", buckets, len(chains), *heads, *chains)


def _sysv(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _verdef(soname: str, versions: list[str], at_of: dict[str, int]) -> bytes:
    data = bytearray()
    for number, name in enumerate([soname, *versions], 1):
        last = number == len(versions) + 1
        data += struct.pack("<HHHHIII", 1, 1 if number == 1 else 0, number, 1, _sysv(name), 20, 0 if last else 28)
        data += struct.pack("<II", at_of[name], 0)
    return bytes(data)


class _Image:
    """The file as it grows: three segments, addresses equal to offsets."""

    def __init__(self) -> None:
        self.headers = 64 + 56 * 5
        self.data = bytearray(self.headers)
        self.at: dict[str, int] = {}
        self.bounds: list[tuple[str, int, int]] = []
        self.begin = 0

    @property
    def end(self) -> int:
        return len(self.data)

    def add(self, name: str, content: bytes, align: int) -> None:
        self.data += bytes(-len(self.data) % align)
        self.at[name] = len(self.data)
        self.data += content

    def reserve(self, name: str, size: int, align: int) -> None:
        self.add(name, bytes(size), align)

    def fill(self, name: str, content: bytes) -> None:
        self.data[self.at[name] : self.at[name] + len(content)] = content

    def segment_end(self, kind: str) -> None:
        self.bounds.append((kind, self.begin, len(self.data)))
        if kind != "write":
            self.data += bytes(-len(self.data) % _PAGE)
            self.begin = len(self.data)

    def finish(self, zeros: int) -> bytes:
        """The file, ``zeros`` bytes of .bss behind it in memory."""
        flags = {"read": 4, "execute": 5, "write": 6}
        rows: list[tuple[int, int, int, int, int | None]] = []
        for kind, start, end in self.bounds:
            rows.append((1, flags[kind], start, end - start, end - start + (zeros if kind == "write" else 0)))
        rows.append((2, 6, self.at["dynamic"], 16 * 11, 16 * 11))
        rows.append((0x6474E551, 6, 0, 0, 0))  # PT_GNU_STACK: not executable
        header = b"\x7fELF\x02\x01\x01" + bytes(9)
        header += struct.pack("<HHIQQQIHHHHHH", 3, X86_64, 1, 0, 64, 0, 0, 64, 56, len(rows), 64, 0, 0)
        table = b"".join(
            struct.pack("<IIQQQQQQ", kind, flag, at, at, at, size, memory, _PAGE if kind == 1 else 8)
            for kind, flag, at, size, memory in rows
        )
        self.data[: len(header) + len(table)] = header + table
        return bytes(self.data)

"""The dynamic linker's cache: which file the name of a shared library leads to."""

import os
import platform
import struct
from typing import Dict, Optional

#: Header and entry of the "new" format, which glibc >= 2.2 appends to or writes instead of the old one.
#: Source: glibc, sysdeps/generic/dl-cache.h, struct cache_file_new and struct file_entry_new.
MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("=20sIIB3xI12x")
ENTRY = struct.Struct("=iIIIQ")

#: Entry flags: low byte, kind of library; next byte, its ABI. Source: the same file, FLAG_ELF_LIBC6 and
#: FLAG_X8664_LIB64, FLAG_AARCH64_LIB64.
FLAG_ELF_LIBC6 = 0x0003
FLAG_ABI = {"x86_64": 0x0300, "aarch64": 0x0A00}


def parse(data: bytes, machine: Optional[str] = None) -> Dict[str, str]:
    """Library name (``libcuda.so.1``) → absolute path, for one machine's ABI; the first entry wins, as in ld.so.

    Raises ValueError when ``data`` is no cache of the new format.
    """
    start = data.find(MAGIC)
    if start < 0:
        raise ValueError("no glibc-ld.so.cache1.1 header")
    wanted = FLAG_ELF_LIBC6 | FLAG_ABI.get(machine or platform.machine(), 0)
    libraries: Dict[str, str] = {}
    try:
        count = HEADER.unpack_from(data, start)[1]
        for i in range(count):
            flags, key, value, _, _ = ENTRY.unpack_from(data, start + HEADER.size + i * ENTRY.size)
            if flags == wanted:
                libraries.setdefault(_string(data, start + key), _string(data, start + value))
    except (struct.error, ValueError) as error:
        raise ValueError("cache ends early: %s" % error) from error
    return libraries


def _string(data: bytes, offset: int) -> str:
    return os.fsdecode(data[offset : data.index(b"\0", offset)])

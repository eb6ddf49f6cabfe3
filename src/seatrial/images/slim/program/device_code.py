"""Device code in a library: NVIDIA's fat binaries, each a row of cubins and PTX texts for several architectures.

The layout is not documented; these fields were found by reading libraries of CUDA 13.0 (libtorch_cuda, cuBLAS, cuDNN,
NCCL, cuSOLVER: 5,900 fat binaries, each a row of entries of the length in its header). A container begins with
0xBA55ED50, version 1, its header's size (16) and the size that follows. An entry begins with its kind (1: PTX, 2:
cubin), its header's size at +4, its payload's size at +8 and its architecture, e.g. 90, at +28.
"""

from __future__ import annotations

import os
import struct
from collections import namedtuple
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from seatrial.findings.device_code import runs_on
from seatrial.images.slim.program.compact import compact
from seatrial.images.slim.program.elf import Data, mapped
from seatrial.images.slim.program.files import SlimReport, libraries

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)

PTX, CUBIN = 1, 2

#: ``payload`` is the file range of the code itself; header and all other entries stay as they are.
Entry = namedtuple("Entry", "kind architecture payload")


def containers(data: Data) -> list[list[Entry]]:
    """The entries of every fat binary in a file; one that does not read as a row of entries is left alone."""
    found = []
    at = data.find(MAGIC)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", data, at + 8)
        entries = _entries(data, at + 16, at + 16 + size)
        if entries:
            found.append(entries)
        at = data.find(MAGIC, at + 16 + size if entries else at + 4)
    return found


def _entries(data: Data, at: int, end: int) -> list[Entry]:
    entries = []
    if end > len(data):
        return []
    while at < end:
        if at + 64 > end:
            return []
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        (architecture,) = struct.unpack_from("<I", data, at + 28)
        payload = (at + header, at + header + size)
        if kind not in (PTX, CUBIN) or header < 64 or not 20 <= architecture < 1000 or payload[1] > end:
            return []
        entries.append(Entry(kind, architecture, payload))
        at = payload[1]
    return entries


def never_loaded(entries: Iterable[Entry], targets: set[int]) -> list[tuple[int, int]]:
    """Payloads that the driver loads on none of the target architectures, e.g. ``{90}``.

    Lower minors stay (an 8.9 GPU runs 8.0 and 8.6 code), as do variants like 90a, which bear the same number.
    PTX stays where no cubin fits: the newest that can be read.
    """
    entries = list(entries)
    kept: set[int] = set()
    for target in targets:
        cubins = [at for at, each in enumerate(entries) if each.kind == CUBIN and _runs(each, target)]
        readable = [each.architecture for each in entries if each.kind == PTX and _runs(each, target)]
        newest = None if cubins else max(readable, default=None)
        kept.update(cubins, (at for at, each in enumerate(entries) if each.kind == PTX and each.architecture == newest))
    return [each.payload for at, each in enumerate(entries) if at not in kept]


def _runs(entry: Entry, target: int) -> bool:
    kind = "sm" if entry.kind == CUBIN else "compute"
    return runs_on(f"{kind}_{entry.architecture}", f"{target // 10}.{target % 10}")


#: Libraries at a time. Reading and writing them is what takes long, and lets other threads go on.
_MOST_THREADS = 8


def shrink_libraries(site: Path, targets: set[int], report: SlimReport, *, skipped: Collection[Path] = ()) -> None:
    """Write them anew without what no run reads.

    Args:
        targets: architectures whose device code stays, e.g. ``{90}``; empty: all of it.
        skipped: libraries of a layer below: it has been through this, and a change would store them again.
    """
    shown = ", ".join(f"sm_{target}" for target in sorted(targets))
    gone = f"device code for GPUs other than {shown}"
    paths = sorted((path for path in libraries(site) if path not in skipped), key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        for symbols, code in threads.map(partial(_shrink, targets=targets), paths):
            report.add("symbol tables and debug information", symbols)
            report.add(gone, code)


def _shrink(path: Path, *, targets: set[int]) -> tuple[int, int]:
    """(bytes of symbols, bytes of device code) that are gone."""
    empty: list[tuple[int, int]] = []
    if targets:
        data = mapped(path).data
        empty = [payload for entries in containers(data) for payload in never_loaded(entries, targets)]
    return compact(path, empty)

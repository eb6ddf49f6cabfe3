"""Every library once: symbols and debug information go, and at level ``arch`` device code for other GPUs."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from seatrial.images.slimming.compact import compact
from seatrial.images.slimming.elf import mapped
from seatrial.images.slimming.fatbin import containers, never_loaded
from seatrial.images.slimming.files import libraries
from seatrial.images.slimming.report import Report

#: Libraries at a time. Reading and writing them is what takes long, and lets other threads go on.
_MOST_THREADS = 8


def shrink_libraries(
    site: Path, targets: set[int], report: Report, *, rewrite: bool = True, skipped: Collection[Path] = ()
) -> None:
    """Write them anew without what no run reads.

    Args:
        targets: architectures whose device code stays, e.g. ``{90}``; empty: all of it.
        skipped: libraries of a layer below: it has been through this, and a change would store them again.
        rewrite: cut device code out of the files; else it is zeroed in place, and vanishes in compressed layers only.
    """
    shown = ", ".join(f"sm_{target}" for target in sorted(targets))
    gone = f"device code for GPUs other than {shown}" + ("" if rewrite else ", zeroed in place")
    paths = sorted((path for path in libraries(site) if path not in skipped), key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        for symbols, code in threads.map(partial(_shrink, targets=targets, rewrite=rewrite), paths):
            report.add("symbol tables and debug information", symbols)
            report.add(gone, code)


def _shrink(path: Path, *, targets: set[int], rewrite: bool) -> tuple[int, int]:
    """(bytes of symbols, bytes of device code) that are gone."""
    empty: list[tuple[int, int]] = []
    if targets:
        data = mapped(path).data
        empty = [payload for entries in containers(data) for payload in never_loaded(entries, targets)]
    if rewrite or not empty:
        return compact(path, empty)
    with path.open("r+b") as file:
        for start, end in empty:
            file.seek(start)
            file.write(bytes(end - start))
    return compact(path, [])[0], sum(end - start for start, end in empty)

"""Level ``arch``: device code for other GPUs goes, and the files shrink by what it took."""

from __future__ import annotations

from pathlib import Path

from seatrial.images.slimming.compact import compact
from seatrial.images.slimming.fatbin import containers, never_loaded
from seatrial.images.slimming.files import libraries
from seatrial.images.slimming.report import Report


def slim_arch(site: Path, targets: set[int], report: Report, *, rewrite: bool) -> None:
    """Keep what the target architectures load, e.g. ``{90}``.

    Args:
        rewrite: shrink the files; else the code is zeroed in place, and vanishes in compressed layers only.
    """
    shown = ", ".join(f"sm_{target}" for target in sorted(targets))
    for path in libraries(site):
        data = path.read_bytes()
        empty = [payload for entries in containers(data) for payload in never_loaded(entries, targets)]
        if not empty:
            continue
        size = sum(end - start for start, end in empty)
        if rewrite:
            report.add(f"device code for other GPUs than {shown}", compact(path, empty))
            continue
        with path.open("r+b") as file:
            for start, end in empty:
                file.seek(start)
                file.write(bytes(end - start))
        report.add(f"device code for other GPUs than {shown}, zeroed in place", size)

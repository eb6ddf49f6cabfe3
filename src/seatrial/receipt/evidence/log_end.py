"""The end of a run's output, as its logs have it: why a script failed is mostly said there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import UntrustedPathError
from seatrial.receipt.evidence.output import LAUNCHER_ERRORS, RANK, TRACEBACK
from seatrial.receipt.model import LogEnd
from seatrial.system.nofollow import open_regular

#: Lines kept of each stream: a screen.
MAX_LINES = 40

#: Lines kept of a traceback, its first ones and its last ones; deeper ones are framework's.
MAX_FRAMES = 60

#: Letters kept of a line.
MAX_LETTERS = 400

#: Read from the end of a log: torch's longest traceback is some 20 kB a rank.
_TAIL_BYTES = 256 * 1024

#: Escape sequences, control characters other than the tab, and what turns the direction of writing.
_STEERS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def read_log_end(run_dir: Path) -> LogEnd | None:
    """The last traceback of stderr and the last lines of both streams; None where nothing was printed."""
    stderr, stdout = (_lines(run_dir / f"{name}.log") for name in ("stderr", "stdout"))
    end = LogEnd(traceback=tuple(_traceback(stderr)), stderr=_last(stderr), stdout=_last(stdout))
    return end if end.stderr or end.stdout else None


def _lines(path: Path) -> list[str]:
    text = _tail(path).decode("utf-8", "replace").replace("\r\n", "\n")
    seen = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # a progress bar drew over it
    return [_cut(_STEERS.sub("", line)) for line in seen]


def _tail(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except (FileNotFoundError, UntrustedPathError):
        return b""


def _cut(line: str) -> str:
    kept = line.rstrip().encode("utf-8", "replace").decode()
    return kept if len(kept) <= MAX_LETTERS else kept[: MAX_LETTERS - 1] + "…"


def _last(lines: Sequence[str]) -> tuple[str, ...]:
    """Without empty lines at the end."""
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    return tuple(lines[max(0, end - MAX_LINES) : end])


def _traceback(lines: Sequence[str]) -> list[str]:
    """The last one that is not a launcher's own, from its first line to the exception, with its indented lines."""
    plain = [RANK.sub("", line) for line in lines]
    for start in reversed([place for place, line in enumerate(plain) if line.startswith(TRACEBACK)]):
        end = start + 1
        while end < len(plain) and (plain[end].startswith((" ", "\t")) or not plain[end]):
            end += 1
        if end < len(plain) and not any(name in plain[end] for name in LAUNCHER_ERRORS):
            last = end + 1
            while last < len(plain) and plain[last].startswith((" ", "\t")) and plain[last].strip():
                last += 1
            return _shortened(plain[start:last])
    return []


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MAX_FRAMES:
        return lines
    first = MAX_FRAMES // 3
    left_out = len(lines) - MAX_FRAMES
    return [*lines[:first], f"  … {left_out} lines left out …", *lines[first + left_out :]]

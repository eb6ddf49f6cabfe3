"""What the target printed, as far as a receipt judges it: known failures, and the exception it died of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial.findings.finding import Finding
from seatrial.findings.match import match_lines
from seatrial.receipt.evidence.fields import clean

#: The agent's names for the two streams, in the run folder.
STREAMS = ("stderr.log", "stdout.log")

#: Bytes of the end of stderr searched for the last traceback: torch's longest are some 20 kB a rank.
TAIL_BYTES = 256 * 1024

#: A progress bar writes megabytes without a line end; longer lines are read in pieces.
MAX_LINE_BYTES = 64 * 1024

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
#: torch.distributed puts this before every line a rank prints of its traceback.
_RANK = re.compile(r"^\[rank\d+\]:\s?")
#: What a launcher raises because a child failed says nothing of why the child did.
_LAUNCHER_ERRORS = ("ChildFailedError", "ProcessExitedException", "ProcessRaisedException")


@dataclass(frozen=True)
class Output:
    """Attributes:

    findings: known failures in stderr and stdout, one of each.
    exception: the last Python exception on stderr, ``ValueError: …``, or None.
    last_line: the last line on stderr that is not indented, since those explain one before them, or None. Where a
        launcher reports that a rank failed, the rank's own last ``error: …``.
    lines: of both logs, by their line ends.
    """

    findings: tuple[Finding, ...] = ()
    lines: int = 0
    exception: str | None = None
    last_line: str | None = None


def read_output(run_dir: Path) -> Output:
    """Read both logs of a run; a log that is not there is empty."""
    findings: dict[str, Finding] = {}
    ends = [0]
    for name in STREAMS:
        for finding in match_lines(_counted(_lines(run_dir / name), ends)):
            finding.evidence = [f"{name} {clean(line)}" for line in finding.evidence]
            findings.setdefault(finding.id, finding)
    tail = [_RANK.sub("", line) for line in _tail(run_dir / STREAMS[0]).splitlines()]
    said = [line for line in tail if line.strip()]
    last_line = next((line for line in reversed(said) if not line[0].isspace()), said[-1] if said else None)
    if any(error in line for line in said for error in _LAUNCHER_ERRORS):
        last_line = next((line for line in reversed(said) if line.startswith("error: ")), last_line)
    last_line = clean(last_line) if last_line else None
    return Output(tuple(findings.values()), ends[0], last_exception(tail), last_line)


def _counted(lines: Iterator[bytes], ends: list[int]) -> Iterator[bytes]:
    for line in lines:
        ends[0] += line.endswith(b"\n")
        yield line


def last_exception(lines: list[str]) -> str | None:
    """Type and message of the last traceback that is not a launcher's own."""
    for start in reversed([i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)]):
        for line in lines[start + 1 :]:
            match = _EXCEPTION.match(line)
            if match is None:  # the indented frames
                continue
            if match.group(1).rpartition(".")[2] in _LAUNCHER_ERRORS:
                break
            return clean(line)
    return None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from iter(lambda: file.readline(MAX_LINE_BYTES), b"")
    except FileNotFoundError:
        return


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""

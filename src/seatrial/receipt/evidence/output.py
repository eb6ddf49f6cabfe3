"""What the target printed, as far as a receipt judges it: known failures, and the exception it died of."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from seatrial.findings.finding import Finding
from seatrial.findings.match import STEERS, match_lines, without_steering
from seatrial.receipt.evidence.fields import clean

#: The agent's names for the two streams, in the run folder.
STREAMS = ("stderr.log", "stdout.log")

#: Beside them: ``<unix time> <1|2> <bytes>`` for each chunk of stdout (1) and stderr (2), in the order they came.
INDEX = "output.idx"

_CHUNK = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ([12]) (\d{1,15})")

#: Bytes of the end of stderr searched for the last traceback: torch's longest are some 20 kB a rank.
TAIL_BYTES = 256 * 1024

#: A progress bar writes megabytes without a line end; longer lines are read in pieces.
MAX_LINE_BYTES = 64 * 1024

#: Lines at the beginning and the end of a stream that are looked at for how a script took its leave.
FEW_LINES = 3

TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
#: Of a frame around text: its sides, and what its edges are drawn with.
_SIDES, _EDGES = ("│", "┃"), "╭╮╰╯─┏┓┗┛━┌┐└┘"
_FRAME = re.compile(r"^  File \".*\", line \d+, in (\S+)$")
#: torch.distributed puts this before every line a rank prints of its traceback.
RANK = re.compile(r"^\[rank\d+\]:\s?")
#: What Python prints before the traceback of an exception in a thread, in __del__, at exit, in logging, and in a
#: task, of which it names the task or the handle in a line of its own.
_GOES_ON = re.compile(
    r"Exception (ignored )?in\b|Error in atexit\._run_exitfuncs|--- Logging error ---|(task|future|handle): <"
)

#: A program that goes on longer than this after an exception has other last words. Standard output that was held back
#: is written at the end, which takes less.
_SOON_S = 2.0
#: What a launcher raises because a child failed says nothing of why the child did.
LAUNCHER_ERRORS = (
    "ChildFailedError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RendezvousConnectionError",
)


@dataclass(frozen=True)
class Output:
    """Attributes:

    findings: known failures in stderr and stdout, one of each.
    exception: the last Python exception on stderr, ``ValueError: …``, or None. raised_in: the function that raised it.
    last_line: the last line on stderr that is not indented, since those explain one before them, or None. Where a
        launcher reports that a rank failed, the rank's own last ``error: …``.
    ends_with_exception: the last thing on stderr, with nothing on stdout long after it, is the traceback of an
        exception that nobody announced as harmless.
    after_stderr: what stdout said when stderr had said its last; () where the index of both does not tell.
    said_at: when its last pieces came, in seconds since the epoch; () where it said nothing, None where no index tells.
    lines: on both that say something. line_ends: on both, of whatever lines.
    first_lines, last_lines: a few of either, those of stderr first.
    """

    findings: tuple[Finding, ...] = ()
    exception: str | None = None
    raised_in: str | None = None
    last_line: str | None = None
    ends_with_exception: bool = False
    after_stderr: tuple[str, ...] = ()
    said_at: tuple[float, ...] | None = None
    lines: int = 0
    line_ends: int = 0
    first_lines: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()


def read_output(run_dir: Path) -> Output:
    """Read both logs of a run; a log that is not there is empty."""
    findings: dict[str, Finding] = {}
    ends = [_Ends() for _ in STREAMS]
    for name, end in zip(STREAMS, ends, strict=True):
        for finding in match_lines(end.watch(_lines(run_dir / name))):
            finding.evidence = [f"{name} {clean(line)}" for line in finding.evidence]
            findings.setdefault(finding.id, finding)
    tail = [RANK.sub("", line) for line in _tail(run_dir / STREAMS[0]).splitlines()]
    said = [inside for line in tail if (inside := _without_frame(line)).strip()]
    chunks = _last_chunks(run_dir)
    last_line = next((line for line in reversed(said) if not line[0].isspace()), said[-1] if said else None)
    if any(error in line for line in said for error in LAUNCHER_ERRORS):
        last_line = next((line for line in reversed(said) if line.startswith("error: ")), last_line)
    exception, raised_in = last_exception(tail)
    return Output(
        findings=tuple(findings.values()),
        exception=exception,
        raised_in=raised_in,
        last_line=clean(last_line) if last_line else None,
        ends_with_exception=ends_with_exception(tail) and not _went_on(run_dir),
        after_stderr=_after_stderr(run_dir, chunks),
        said_at=_said_at(run_dir, chunks),
        lines=sum(end.count for end in ends),
        line_ends=sum(end.line_ends for end in ends),
        first_lines=tuple(clean(line) for end in ends for line in end.first),
        last_lines=tuple(clean(line) for end in ends for line in end.last),
    )


def _without_frame(line: str) -> str:
    """What stands in the frame that rich, and typer with it, draws around errors; nothing of its edges."""
    inside = line.strip()
    if inside[:1] in _SIDES and inside[-1:] in _SIDES and len(inside) > 1:
        return inside[1:-1].strip()
    return "" if inside and not inside.strip(_EDGES) else line


class _Ends:
    """The first and last lines that say something, of lines that pass by."""

    def __init__(self) -> None:
        self.count = 0
        self.line_ends = 0
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque(maxlen=FEW_LINES)

    def watch(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.line_ends += line.endswith(b"\n")
            if not line.isspace():
                self.count += 1
                self._last.append(line)
                if self.count <= FEW_LINES:
                    self._first.append(line)
            yield line

    @property
    def first(self) -> list[str]:
        return _text(self._first)

    @property
    def last(self) -> list[str]:
        return _text(self._last)


def _text(lines: Iterable[bytes]) -> list[str]:
    """Of a line that a progress bar has drawn over, what is seen in the end."""
    return [line.decode("utf-8", "replace").strip().rpartition("\r")[2] for line in lines]


def last_exception(lines: list[str]) -> tuple[str | None, str | None]:
    """(type and message, function that raised it) of the last traceback that is not a launcher's own."""
    for start in reversed([i for i, line in enumerate(lines) if line.startswith(TRACEBACK)]):
        function = None
        for number, line in enumerate(lines[start + 1 :], start + 2):
            match = _EXCEPTION.match(line)
            if match is None:  # the indented frames
                function = frame[1] if (frame := _FRAME.match(line)) else function
                continue
            if match.group(1).rpartition(".")[2] in LAUNCHER_ERRORS:
                break
            below = lines[number] if line.endswith(":") and number < len(lines) else ""
            return clean(f"{line} {below.strip()}" if below.startswith((" ", "\t")) else line), function
    return None, None


def ends_with_exception(lines: list[str]) -> bool:
    """Whether the last line is that of an exception. Python announces one that it goes on after in the line before."""
    said = [line for line in lines if line.strip()]
    start = next((at for at in range(len(said) - 1, -1, -1) if said[at].startswith(TRACEBACK)), None)
    if start is None or (start and _GOES_ON.match(said[start - 1])):
        return False
    below = [line for line in said[start + 1 :] if not line[0].isspace()]
    return len(below) == 1 and said[-1] == below[0] and _EXCEPTION.match(below[0]) is not None


def _went_on(run_dir: Path) -> bool:
    """Whether the other stream was written to long after stderr."""
    stderr, stdout = (run_dir / name for name in STREAMS)
    try:
        return stdout.stat().st_mtime - stderr.stat().st_mtime > _SOON_S
    except FileNotFoundError:
        return False


def _last_chunks(run_dir: Path) -> list[tuple[float, str, int]]:
    """(unix time, stream, bytes) of the last chunks of both logs, in the order they came."""
    found = (_CHUNK.fullmatch(line) for line in _tail(run_dir / INDEX).splitlines())
    return [(float(chunk[1]), chunk[2], int(chunk[3])) for chunk in found if chunk]


def _said_at(run_dir: Path, chunks: list[tuple[float, str, int]]) -> tuple[float, ...] | None:
    silent = (run_dir / INDEX).is_file() and not any(_tail(run_dir / name) for name in (INDEX, *STREAMS))
    return tuple(at for at, _, _ in chunks) if chunks or silent else None


def _after_stderr(run_dir: Path, chunks: list[tuple[float, str, int]]) -> tuple[str, ...]:
    behind = takewhile(lambda chunk: chunk[1] == "1", reversed(chunks))
    size = sum(count for _, _, count in behind)
    said = _tail(run_dir / STREAMS[1], size).splitlines() if size else []
    return tuple(clean(line) for line in said if line.strip())


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
                yield without_steering(line)
    except FileNotFoundError:
        return


def _tail(path: Path, most_bytes: int = TAIL_BYTES) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - min(most_bytes, TAIL_BYTES)))
            return STEERS.sub(b"", file.read()).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""

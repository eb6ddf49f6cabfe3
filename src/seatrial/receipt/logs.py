"""The target's output: known failures, the exception it died of, and the last lines of both streams."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from seatrial.errors import UntrustedPathError, fallback
from seatrial.findings.finding import Finding
from seatrial.findings.match import STEERS, match_lines, without_steering
from seatrial.receipt.outcome import LogEnd
from seatrial.receipt.printed import Printed
from seatrial.receipt.values import clean, clean_line, signal_name
from seatrial.system.files import status_of
from seatrial.system.nofollow import open_regular

#: The agent's names for the two streams, in the run folder.
STREAMS = ("stderr.log", "stdout.log")
#: Index of the logs: ``<unix time> <1|2> <bytes>`` for each chunk of stdout (1) and stderr (2), in order.
INDEX = "output.idx"

_CHUNK = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ([12]) (\d{1,15})")
#: Bytes read from the end of a log for the last traceback: torch's longest are some 20 kB a rank.
TAIL_BYTES = 256 * 1024
#: A progress bar writes megabytes without a line end; longer lines are read in pieces.
MAX_LINE_BYTES = 64 * 1024
#: Lines kept of the beginning and the end of a stream, where a script reports why it leaves.
FEW_LINES = 3
#: Kept of a log's end: lines of each stream (a screen), of a traceback (deeper frames are the framework's), and
#: letters of a line.
MAX_LINES, MAX_FRAMES, MAX_LETTERS = 40, 60, 400

TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.<>]*)(?:: (.*))?$")
#: The sides and edges of a frame around text, as rich draws it.
_SIDES, _EDGES = ("│", "┃"), "╭╮╰╯─┏┓┗┛━┌┐└┘"
_FRAME = re.compile(r"^  File \".*\", line \d+, in (\S+)$")
#: A package's import of another one that loads a file next to the script: ``from cuda.bindings import x``, w/cuda.py.
_HIDING = re.compile(
    r'(?m)^  File "(?=.*(?:-packages|/lib/python[\d.]+)/).*\n +(?:from|import) (\w+).*\n'
    r'(?: +(?:[~^]|File "<frozen).*\n)*  File "(?!.*(?:-packages|/lib/python[\d.]+)/)(?:.*/)?(\1\.py)", line'
)
#: torch.distributed puts this before every line a rank prints of its traceback.
_RANK = re.compile(r"^\[rank\d+\]:\s?")
#: torchrun's summary names the rank that failed first.
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):[^=]*?rank +: (\d+) [^=]*?exitcode +: (-?\d+)")
#: Python prints this before the traceback of an exception in a thread, in __del__, at exit, in logging, and in a
#: task, of which it names the task or the handle in a line of its own.
_GOES_ON = re.compile(
    r"Exception (ignored )?in\b|Error in atexit\._run_exitfuncs|--- Logging error ---|(task|future|handle): <"
)
#: A program that goes on for longer after an exception has other last words; buffered output at its end takes less.
_SOON_S = 2.0
#: A launcher raises these because a child failed; they do not explain why the child did.
_LAUNCHER_ERRORS = ("ChildFailedError", "ProcessExitedException", "ProcessRaisedException",
                    "RendezvousConnectionError")  # fmt: skip


@dataclass(frozen=True)
class Output:
    """The output of a run, as far as a receipt judges it.

    Attributes:
        findings: known failures in stderr and stdout, one of each.
        exception: the last Python exception on stderr, ``ValueError: …``, or None. raised_in: the function.
        hides: the script's file that an installed package imported in place of another package, or None.
        last_line: the last line on stderr that is not indented, or None. If a launcher reports that a rank failed, the
            rank's own last ``error: …``.
        ends_with_exception: stderr ends with the traceback of an exception that was not announced as harmless, and
            stdout ends not long after it.
        after_stderr: lines of stdout after the last of stderr; () if the index of both does not show them.
        chunk_times: Unix times of the last chunks; () if there was no output, None without an index.
        lines: not empty, of both streams. line_ends: of all lines.
        first_lines, last_lines: a few of either stream, those of stderr first.
        printed: the metrics among the lines.
    """

    findings: tuple[Finding, ...] = ()
    exception: str | None = None
    raised_in: str | None = None
    hides: str | None = None
    last_line: str | None = None
    ends_with_exception: bool = False
    after_stderr: tuple[str, ...] = ()
    chunk_times: tuple[float, ...] | None = None
    lines: int = 0
    line_ends: int = 0
    first_lines: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    printed: Printed = field(default_factory=Printed)


def read_output(run_dir: Path, metrics: Mapping[str, str] | None = None) -> Output:
    """Read both logs of a run; a missing log is empty. ``metrics``: the patterns of ``[metrics]``."""
    findings: dict[str, Finding] = {}
    printed_metrics = Printed(metrics)
    ends = [_Ends(printed_metrics, name.removesuffix(".log")) for name in STREAMS]
    for name, end in zip(STREAMS, ends, strict=True):
        for finding in match_lines(end.watch(_lines(run_dir / name))):
            finding.evidence = [f"{name} {clean(line)}" for line in finding.evidence]
            findings.setdefault(finding.id, finding)
    tail = [_RANK.sub("", line) for line in _tail(run_dir / STREAMS[0]).splitlines()]
    printed = [inside for line in tail if (inside := _without_frame(line)).strip()]
    chunks = [chunk for line in _tail(run_dir / INDEX).splitlines() if (chunk := _CHUNK.fullmatch(line))]
    last_line = next((line for line in reversed(printed) if not line[0].isspace()), printed[-1] if printed else None)
    if any(error in line for line in printed for error in _LAUNCHER_ERRORS):
        own = (line for line in reversed(printed) if line.startswith("error: "))
        last_line = next(own, _failed_rank(tail) or last_line)
    silent = (run_dir / INDEX).is_file() and not any(_tail(run_dir / name) for name in (INDEX, *STREAMS))
    exception, raised_in, hides = _last_exception(tail)
    stderr, stdout = (status_of(run_dir / name) for name in STREAMS)
    went_on = stderr and stdout and stdout.st_mtime - stderr.st_mtime > _SOON_S  # stdout was written to long after
    return Output(
        findings=tuple(findings.values()),
        exception=exception,
        raised_in=raised_in,
        hides=hides,
        last_line=clean(last_line) if last_line else None,
        ends_with_exception=_ends_with_exception(tail) and not went_on,
        after_stderr=_after_stderr(run_dir, chunks),
        chunk_times=tuple(float(chunk[1]) for chunk in chunks) if chunks or silent else None,
        lines=sum(end.count for end in ends),
        line_ends=sum(end.line_ends for end in ends),
        first_lines=tuple(_text(line) for end in ends for line in end.first),
        last_lines=tuple(_text(line) for end in ends for line in end.last),
        printed=printed_metrics,
    )


def read_printed(run_dir: Path, metrics: Mapping[str, str]) -> Printed:
    """Return the metrics among the last lines of both logs, the newer one last; their lines have no numbers."""
    printed = Printed(metrics)
    there = [name for name in STREAMS if (run_dir / name).exists()]
    for name in sorted(there, key=lambda name: (run_dir / name).stat().st_mtime):
        for line in _end(run_dir / name, TAIL_BYTES // 8).split(b"\n"):
            printed.add(line, stream=name.removesuffix(".log"))
    return printed


def _failed_rank(lines: list[str]) -> str | None:
    """Return how the rank ended that torchrun's summary names first, or None without a summary."""
    if (match := _ROOT_CAUSE.search("\n".join(lines))) is None:
        return None
    code = int(match[2])
    return f"rank {match[1]} " + (f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}")


def _without_frame(line: str) -> str:
    """Return the text inside the frame that rich, and typer with it, draws around errors; "" for its edges."""
    inside = line.strip()
    if inside[:1] in _SIDES and inside[-1:] in _SIDES and len(inside) > 1:
        return inside[1:-1].strip()
    return "" if inside and not inside.strip(_EDGES) else line


class _Ends:
    """Counts lines, and keeps the first and the last that are not empty."""

    def __init__(self, printed: Printed, stream: str) -> None:
        self._printed, self._stream = printed, stream
        self.count = self.line_ends = 0
        self.first: list[bytes] = []
        self.last: deque[bytes] = deque(maxlen=FEW_LINES)

    def watch(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._printed.add(line, self.line_ends + 1, self._stream)
            self.line_ends += line.endswith(b"\n")
            if not line.isspace():
                self.count += 1
                self.last.append(line)
                if self.count <= FEW_LINES:
                    self.first.append(line)
            yield line


def _text(line: bytes) -> str:
    """Decode a line; of one that a progress bar has drawn over, keep the last state."""
    return clean(line.decode("utf-8", "replace").strip().rpartition("\r")[2])


def _tracebacks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where each traceback begins and where its exception is, the last first; not those of a launcher."""
    following: int | None = None  # the next exception, None if it is a launcher's
    for place in reversed(range(len(lines))):
        if _EXCEPTION.match(lines[place]):
            launchers = lines[place].partition(":")[0].rpartition(".")[2] in _LAUNCHER_ERRORS
            following = None if launchers else place
        elif following is not None and lines[place].startswith(TRACEBACK):
            yield place, following


def _last_exception(lines: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    """Return (type and message, function that raised it, file that hides a package) of the last traceback."""
    for start, place in _tracebacks(lines):
        functions = [frame[1] for line in lines[start:place] if (frame := _FRAME.match(line))]
        line, below = lines[place], lines[place + 1] if place + 1 < len(lines) else ""
        whole = f"{line} {below.strip()}" if line.endswith(":") and below.startswith((" ", "\t")) else line
        hiding = _HIDING.search("\n".join(lines[start:place]))
        return clean(whole), functions[-1] if functions else None, clean(hiding[2]) if hiding else None
    return None, None, None


def _ends_with_exception(lines: list[str]) -> bool:
    """Return whether an exception is the last line, unless Python announced a continuation before it."""
    printed = [line for line in lines if line.strip()]
    start = next((at for at in range(len(printed) - 1, -1, -1) if printed[at].startswith(TRACEBACK)), None)
    if start is None or (start and _GOES_ON.match(printed[start - 1])):
        return False
    below = [line for line in printed[start + 1 :] if not line[0].isspace()]
    return len(below) == 1 and printed[-1] == below[0] and _EXCEPTION.match(below[0]) is not None


def _after_stderr(run_dir: Path, chunks: list[re.Match[str]]) -> tuple[str, ...]:
    size = sum(int(chunk[3]) for chunk in takewhile(lambda chunk: chunk[2] == "1", reversed(chunks)))
    printed = _tail(run_dir / STREAMS[1], size).splitlines() if size else []
    return tuple(clean(line) for line in printed if line.strip())


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError, UntrustedPathError), open_regular(path) as file:
        yield from map(without_steering, iter(lambda: file.readline(MAX_LINE_BYTES), b""))


@fallback(b"", on=(FileNotFoundError, UntrustedPathError))
def _end(path: Path, most_bytes: int = TAIL_BYTES) -> bytes:
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - most_bytes))
        return file.read(most_bytes)


def _tail(path: Path, most_bytes: int = TAIL_BYTES) -> str:
    return STEERS.sub(b"", _end(path, min(most_bytes, TAIL_BYTES))).decode("utf-8", "replace")


def read_log_end(run_dir: Path) -> LogEnd | None:
    """Read the last traceback of stderr and the last lines of both streams; None if nothing was printed."""
    stderr, stdout = (_end_lines(run_dir / name) for name in STREAMS)
    end = LogEnd(traceback=tuple(_last_traceback(stderr)), stderr=_last(stderr), stdout=_last(stdout))
    return end if end.stderr or end.stdout else None


def _end_lines(path: Path) -> list[str]:
    text = _end(path).decode("utf-8", "replace").replace("\r\n", "\n")
    seen = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))  # a progress bar drew over the rest
    kept = (clean_line(line).rstrip().encode("utf-8", "replace").decode() for line in seen)
    return [line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…" for line in kept]


def _last(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last lines, without empty ones at the end."""
    end = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
    return tuple(lines[max(0, end - MAX_LINES) : end])


def _last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback, with the indented lines below its exception."""
    plain = [_RANK.sub("", line) for line in lines]
    for start, place in _tracebacks(plain):
        below = takewhile(lambda line: line.startswith((" ", "\t")) and line.strip(), plain[place + 1 :])
        whole = [*plain[start : place + 1], *below]
        if (left_out := len(whole) - MAX_FRAMES) <= 0:
            return whole
        first = MAX_FRAMES // 3
        return [*whole[:first], f"  … {left_out} lines left out …", *whole[first + left_out :]]
    return []

"""Write evidence and reports, numbered and redacted, to a file or, each whole or not at all, as frames to stdout."""

import json
import os
import re
import select
import stat
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, Iterable, List, Optional, Tuple, Union

from seatrial import events, frames

#: A pipe that polls as writable takes this many bytes without blocking. Source: pipe(7), PIPE_BUF.
_SAFE_WRITE_BYTES = 4096
#: Bytes kept for a reader that is slower than the target, before the target is made to wait.
_BACKLOG_BYTES = 256 * 1024
#: Evidence kept for a reader that stalls: a day of samples of one GPU.
_KEPT_BYTES = 64 * 1024 * 1024
#: A reader that takes nothing for this long does not hold the target up any more.
STALL_S = 5.0

_KINDS: Dict[int, bytes] = {1: frames.STDOUT, 2: frames.STDERR}
#: An unfinished line on a terminal, a prompt or a progress bar, goes out once it is so old. A bar that is drawn anew
#: a thousand times a second still makes twenty pieces of it.
PROMPT_S = 0.05

REDACTED = b"[redacted]"

_CHUNK_BYTES = 1 << 20
#: Bytes searched of a file that the target may have made as long as it likes: more than is ever reported.
_LOOKED_THROUGH_BYTES = 1 << 30
#: Kinds that a summary repeats: they show what ran where. Signals show why it ended.
_REPEATED = (
    *(events.AgentStarted, events.GpuCheck, events.GpuKernel, events.Found, events.TargetStarted),
    *(events.GpuContext, events.Signal),
)
_MOST_REPEATED = 64
_LONGEST_REPEATED = 8192
#: Refused reports are reported one by one up to here, then only counted.
_MOST_SINGLE_REFUSALS = 20


class PassThrough:
    """Our own stdout or stderr. It survives a missing reader, and waits at most STALL_S for one that stalls.

    What is written in one call, such as a frame, is let go as a whole or not at all. Safe for two threads.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._queue: Deque[Tuple[bytes, bool]] = deque()
        self._begun = b""  # what is left of a write that the reader has taken a part of
        self._bytes = 0
        self._closed = False
        self.dropped_bytes = 0
        self.shows_prompts = False  # everything is passed on at once, finished lines or not

    @property
    def waiting(self) -> bool:
        """Return whether bytes are left that the reader has not taken yet."""
        return self._bytes > 0

    def write(self, data: bytes, *, keep: bool = False) -> None:
        """Pass on what the reader takes now; wait for it only when too much has piled up.

        ``keep``: evidence, which is let go only when the reader stalls and _KEPT_BYTES of it wait.
        """
        with self._lock:
            if self._closed or not data:
                return
            self._queue.append((data, keep))
            self._bytes += len(data)
            self.flush(0)
            while self._bytes > _BACKLOG_BYTES:
                before = self._bytes
                self.flush(0 if self.dropped_bytes else STALL_S)
                if self._bytes == before:  # stalled: from now on it only gets what it takes at once, and what is kept
                    self._let_go()
                    return

    def _let_go(self) -> None:
        kept: Deque[Tuple[bytes, bool]] = deque()
        free = _KEPT_BYTES - len(self._begun)
        for data, keep in self._queue:
            if keep and len(data) <= free:
                free -= len(data)
                kept.append((data, keep))
            else:
                self._bytes -= len(data)
                self.dropped_bytes += len(data)
        self._queue = kept

    def flush(self, wait_s: float) -> None:
        """Write until all is out or the reader has taken nothing for ``wait_s``."""
        with self._lock:
            while self._bytes and not self._closed:
                if not self._poll.poll(wait_s * 1000):
                    return
                if not self._begun:
                    self._begun = self._queue.popleft()[0]
                try:
                    written = os.write(self._descriptor, self._begun[:_SAFE_WRITE_BYTES])
                    self._begun = self._begun[written:]
                    self._bytes -= written
                except BlockingIOError:
                    return
                except OSError:  # EPIPE, EIO, ENOSPC: nobody will read this
                    self._closed = True
                    self._queue.clear()
                    self._begun, self._bytes = b"", 0


class FramedOutput:
    """Passes an output stream into the log stream. ``shows_prompts``: a user watches, so send incomplete lines, too."""

    def __init__(self, number: int, log: PassThrough) -> None:
        self._splitter = frames.LineSplitter(_KINDS[number])
        self._log = log
        self.shows_prompts = False
        self._held_since_s: Optional[float] = None

    @property
    def waiting(self) -> bool:
        return self._log.waiting or self._held_since_s is not None

    @property
    def dropped_bytes(self) -> int:
        return self._log.dropped_bytes

    def write(self, data: bytes) -> None:
        """Send the lines that are complete."""
        if framed := self._splitter.feed(data):
            self._log.write(framed)
        if not self.shows_prompts or not self._splitter.holds:
            self._held_since_s = None
        elif self._held_since_s is None or framed:
            self._held_since_s = time.monotonic()

    def flush(self, wait_s: float) -> None:
        """Flush like PassThrough; with time to wait it is the end, and an unfinished line goes out, too."""
        prompts = self._held_since_s is not None and time.monotonic() - self._held_since_s >= PROMPT_S
        if wait_s > 0 or prompts:
            self._log.write(self._splitter.flush())
            self._held_since_s = None
        self._log.flush(wait_s)


def take(names: Iterable[str], folder: Optional[str]) -> Dict[str, str]:
    """Read name → value from files of that name in ``folder`` and delete them. Raises OSError without a file."""
    values = {}
    for name in names:
        path = os.path.join(folder or "", name)
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            values[name] = file.read()
        with suppress(OSError):  # a read-only mount: the engine's side deletes it
            os.unlink(path)
    return values


def encode(secrets: Dict[str, str]) -> List[bytes]:
    """Return the values as the bytes that the target may print."""
    return [value.encode("utf-8", "surrogateescape") for value in secrets.values()]


def redact_in_place(path: str, secrets: Iterable[bytes]) -> None:
    """Overwrite secrets, plain or in JSON, in a file of the target's, byte for byte so that readers' offsets hold."""
    known = {secret for secret in secrets if secret}
    known |= {json.dumps(secret.decode("utf-8", "surrogateescape"))[1:-1].encode() for secret in known}
    if not known:
        return
    longest = max(map(len, known))
    pattern = re.compile(b"|".join(re.escape(secret) for secret in sorted(known, key=len, reverse=True)))
    with suppress(OSError):  # there is none, or the file system is broken, which the journal has reported
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            for offset in range(0, _LOOKED_THROUGH_BYTES, _CHUNK_BYTES):
                data = os.pread(descriptor, _CHUNK_BYTES + longest - 1, offset)  # one begun here may end behind it
                for match in pattern.finditer(data):
                    os.pwrite(descriptor, b"*" * (match.end() - match.start()), offset + match.start())
                if len(data) < _CHUNK_BYTES:
                    return
        finally:
            os.close(descriptor)


class Redactor:
    """Replaces secrets in a stream of bytes, also where one spans several chunks.

    Bytes that could be the beginning of a secret are held back until the next ``feed`` or ``flush``. However the
    stream is cut, the result equals replacing in all of it, longest secret first.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(secret) for secret in self._secrets))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on now."""
        if not self._secrets:
            return data
        data, done, out = self._held + data, 0, []
        hold = self._hold_from(data, done)
        for match in self._pattern.finditer(data):
            if match.start() >= hold:
                break
            out += [data[done : match.start()], REDACTED]
            done = match.end()
            hold = self._hold_from(data, done)
        out.append(data[done:hold])
        self._held = data[hold:]
        return b"".join(out)

    def flush(self) -> bytes:
        """Return the held rest, redacted, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._pattern.sub(REDACTED, rest) if self._secrets else rest

    def text(self, text: str) -> str:
        """Return a whole string, redacted; bytes that a stream holds back stay there."""
        data = text.encode("utf-8", "surrogateescape")
        return (self._pattern.sub(REDACTED, data) if self._secrets else data).decode("utf-8", "surrogateescape")

    def _hold_from(self, data: bytes, start: int) -> int:
        """Return the first position from ``start`` whose rest is the beginning, but not the whole, of a secret."""
        first = max(start, len(data) - len(self._secrets[0]) + 1)
        for position in range(first, len(data)):
            rest = data[position:]
            if any(len(rest) < len(secret) and secret.startswith(rest) for secret in self._secrets):
                return position
        return len(data)


class Journal:
    """Writes events, from any thread. A loss is reported once, on the agent's own stderr.

    ``folder``: gets events.jsonl; None: frames on stdout. ``repeats``: keeps what ``summary`` repeats.
    """

    def __init__(self, folder: Optional[str], repeats: bool = False) -> None:
        self._to_repeat: Optional[List[Dict[str, Any]]] = [] if repeats else None
        self._stream = PassThrough(1) if folder is None else None
        self._log = None if folder is None else events.EvidenceLog(os.path.join(folder, "events.jsonl"), "agent")
        self._redactor = Redactor([])
        self._lock = threading.Lock()
        self._seq = 0
        self._complained = False
        self._refused: Dict[str, int] = {}

    def write(self, event: events.Event) -> None:
        """Write one event, or a complaint if it cannot be written."""
        keys = events.as_dict(event, "agent", events.now())
        with self._lock:
            self._seq += 1
            keys["_seq"] = self._seq
            line = self._redacted(events.encode(keys)[:-1])
            self._remember(event, line)
            if self._stream is not None:
                self._stream.write(frames.encode(frames.EVIDENCE, line), keep=True)
            else:
                self._append(events.parse(line))

    def _remember(self, event: events.Event, line: bytes) -> None:
        kept = self._to_repeat
        if kept is None or len(kept) >= _MOST_REPEATED or len(line) > _LONGEST_REPEATED:
            return
        if isinstance(event, _REPEATED) and (parsed := events.parse(line)) is not None:
            kept.append(parsed)

    def summary(self, output_lines: List[int]) -> None:
        """Repeat what matters, where the beginning of the log may be cut: in a pod, before the agent's last line."""
        if self._to_repeat is not None:
            self.write(events.AgentSummary(events=self._to_repeat, output_lines=output_lines))

    def report(self, line: bytes) -> None:
        """Record a line that the target has written to $SEATRIAL_EVENTS: as a report and never as another event."""
        step, claimed = (None, None)
        if self._log is not None or b'"type"' in line or b'"source"' in line or b"\\" in line:
            step, claimed = events.report(line)
        if claimed is not None:
            self._refused[claimed] = self._refused.get(claimed, 0) + 1
            if sum(self._refused.values()) <= _MOST_SINGLE_REFUSALS:
                self.write(events.ReportRefused(claims={claimed: 1}))
            return
        with self._lock:
            self._seq += 1
            if self._stream is not None:
                line = b"%d %.4f %s" % (self._seq, time.time(), self._redacted(line[: events.MAX_REPORT_BYTES + 1]))
                self._stream.write(frames.encode(frames.REPORT, line), keep=True)
            else:
                step = step or events.as_dict(events.ReportUnreadable(), "agent", events.now())
                step["_seq"] = self._seq
                if step["t"] is None:
                    step["t"] = events.now()
                self._append(events.parse(self._redacted(events.encode(step)[:-1])))

    def report_refusals(self) -> None:
        """Write how many reports posed as evidence if more did than were reported one by one. Call once, at the end."""
        if sum(self._refused.values()) > _MOST_SINGLE_REFUSALS:
            self.write(events.ReportRefused(claims=dict(self._refused), total=True))

    def _append(self, event: Optional[Dict[str, Any]]) -> None:
        assert self._log is not None
        try:
            self._log.append([event] if event else [])
        except OSError as error:
            if not self._complained:
                self._complained = True
                print_to_stderr("events are being lost: %s: %s" % (self._log.path, error.strerror))

    def _redacted(self, line: bytes) -> bytes:
        return self._redactor.feed(line) + self._redactor.flush()

    def output_channel(self, number: int) -> "Union[PassThrough, FramedOutput]":
        """Return the channel that passes on the target's stdout (1) or stderr (2)."""
        return PassThrough(number) if self._stream is None else FramedOutput(number, self._stream)

    def hide(self, secrets: "List[bytes]") -> None:
        """Cut these out of every event from now on, as they are and as JSON writes them."""
        escaped = [json.dumps(secret.decode("utf-8", "surrogateescape"))[1:-1].encode() for secret in secrets]
        self._redactor = Redactor([*secrets, *escaped])

    def flush(self, wait_s: float) -> None:
        """Wait for the log stream's reader."""
        if self._stream is not None:
            self._stream.flush(wait_s)

    def note(self, message: str) -> None:
        """Write a sentence for the receipt's timeline."""
        self.write(events.Note(message=message))


def print_to_stderr(message: str) -> None:
    """Print a line on the agent's own stderr, which engines keep. Nobody may be listening any more."""
    with suppress(OSError):
        sys.stderr.write("seatrial: %s\n" % message)
        sys.stderr.flush()

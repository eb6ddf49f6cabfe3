"""Collect an agent's log into its run's record; what a killed collector or a full disk leaves, the next one takes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial import events, frames
from seatrial.errors import fallback
from seatrial.events import EvidenceLog, Lines
from seatrial.system.records import Folder

_NUMBERS = {frames.STDOUT: 1, frames.STDERR: 2}
_NAMES = {1: "stdout.log", 2: "stderr.log"}
INDEX = "output.idx"
#: A number of more digits no agent has counted to, and Python refuses to read one of thousands.
_SEQ_DIGITS = 18
#: Bytes of a cursor's record.
_WIDTH = 96

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Sink:
    """A run's record as the place where an agent's log goes. What comes is written with ``flush``.

    ``nodes``: with more than one, every line of output begins with ``[rank1]: `` and every event names its node.
    ``again``: lines may come a second time, after a collector was killed; numbered ones are then passed over.
    """

    def __init__(self, folder: Path, nodes: int = 1, *, again: bool = False) -> None:
        self.folder = folder
        self._many, self._again = nodes > 1, again
        self._logs = {number: os.open(folder / name, _APPEND, 0o600) for number, name in _NAMES.items()}
        self._index = os.open(folder / INDEX, _APPEND, 0o600)
        self._log = EvidenceLog(str(folder / "events.jsonl"), "host")
        self._recorded, self._last_seqs, self._start = _recorded(folder / "events.jsonl")
        self._unfinished: dict[tuple[int, int], bytes] = {}
        self._printed: list[tuple[int, bytes]] = []
        self._events: list[dict[str, Any]] = []

    def take(self, decoder: frames.FrameDecoder, line: bytes, node: int = 0) -> None:
        """Store one line of an agent's log."""
        kind, data = decoder.feed(line)
        if kind == frames.EVIDENCE:
            event = events.parse(data)
            if event is not None:  # of its own lines, the agent alone is the source
                self._keep(node, {**event, "source": "agent"})
        elif kind == frames.REPORT:
            self._report(node, data)
        else:
            self._output(node, _NUMBERS[kind], data)

    def _output(self, node: int, number: int, data: bytes) -> None:
        """Store a line of stdout (1) or stderr (2), or a piece of one."""
        if self._many:  # pieces of different nodes must not end up in one line
            line = self._unfinished.pop((node, number), b"") + data
            if not line.endswith(b"\n"):
                self._unfinished[node, number] = line
                return
            data = line if line.startswith(b"[rank") else b"[rank%d]: %s" % (node, line)
        if self._printed and self._printed[-1][0] == number:
            data = self._printed.pop()[1] + data
        self._printed.append((number, data))

    def _report(self, node: int, line: bytes) -> None:
        """Store ``<seq> <unix time> <line>``: the target's line, which is a report or nothing."""
        seq, _, rest = line.partition(b" ")
        at, _, text = rest.partition(b" ")
        if not seq.isdigit() or len(seq) > _SEQ_DIGITS:
            return
        step, claimed = events.report(text.rstrip(b"\n"))
        if claimed is not None:
            step = events.as_dict(events.ReportRefused(claims={claimed: 1}), "agent", None)
        elif step is None:
            step = events.as_dict(events.ReportUnreadable(), "agent", None)
        if step["t"] is None:
            step["t"] = fallback(None, on=ValueError)(float)(at)
        self._keep(node, {**step, "_seq": int(seq)})

    def _keep(self, node: int, event: dict[str, Any]) -> None:
        seq = event.get("_seq")
        if self._again and isinstance(seq, int):
            if event["type"] == events.AgentStarted.type:  # a container that its engine starts again has a log of both
                self._start = event["t"]
            if seq <= self._last_seqs.get(self._start, 0):
                return
            self._last_seqs[self._start] = seq
        self._events.append({**event, "node": node} if self._many else event)

    def host_event(self, event: events.Event) -> None:
        """Keep an event of the host once, though every follower of the run sees it."""
        keys = events.as_dict(event, "host", events.now())
        if (mark := _mark(keys)) not in self._recorded:
            self._recorded.add(mark)
            self._events.append(keys)
            self.flush()

    def flush(self) -> None:
        """Write the lines and events that have come to their files. Raises OSError."""
        for number, data in self._printed:
            _write(self._logs[number], data)
            _write(self._index, b"%.6f %d %d\n" % (time.time(), number, len(data)))
        self._printed = []
        if self._events:
            self._log.append(self._events)
            self._events = []

    def sizes(self) -> list[int]:
        """Return the bytes of stdout.log, stderr.log and output.idx."""
        return [os.fstat(descriptor).st_size for descriptor in (*self._logs.values(), self._index)]

    def cut(self, sizes: list[int]) -> None:
        """Cut the files to these sizes: a collector was killed before it had noted how far it was in the rest."""
        for descriptor, size in zip((*self._logs.values(), self._index), sizes, strict=True):
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)

    def close(self) -> None:
        """Write the rest, and close. Raises OSError."""
        try:
            for (node, number), data in self._unfinished.items():
                self._printed.append((number, b"[rank%d]: %s\n" % (node, data)))
            self._unfinished = {}
            self.flush()
        finally:
            for descriptor in (*self._logs.values(), self._index):
                os.close(descriptor)
            self._log.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _recorded(path: Path) -> tuple[set[str], dict[float | None, int], float | None]:
    """Return marks of the host's events so far, the number of the agent's last line by the time of its start, and the
    last of those times."""
    marks: set[str] = set()
    lasts: dict[float | None, int] = {}
    start: float | None = None
    for line in Lines(str(path)).new():
        if (event := events.parse(line)) is None:
            continue
        if event["source"] == "host":
            marks.add(_mark(event))
        elif event["type"] == events.AgentStarted.type:
            start = event["t"]
        if isinstance(seq := event.get("_seq"), int):
            lasts[start] = max(lasts.get(start, 0), seq)
    return marks, lasts, start


def _mark(event: Mapping[str, Any]) -> str:
    """Return an event's content without its time."""
    content = {key: value for key, value in event.items() if key not in ("t", "source", "_chain")}
    return json.dumps(content, sort_keys=True)


class Cursor:
    """Keeps how far a log has been read, in one record: a killed reader loses its place by one write at most."""

    def __init__(self, path: Path, count: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fields = [int(field) for field in os.pread(self._descriptor, _WIDTH, 0).split() if field.isdigit()]
        self.numbers = fields if len(fields) == count else [0] * count

    def save(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        os.pwrite(self._descriptor, b" ".join(b"%d" % number for number in numbers).ljust(_WIDTH), 0)

    def close(self) -> None:
        os.close(self._descriptor)


class Turn:
    """Whose turn it is to collect, among processes and threads: a lock on a file of the run's record."""

    def __init__(self, folder: Path) -> None:
        self._file = Folder(folder).open_lock("collect.lock")
        self.mine = False

    def take(self) -> bool:
        """Take the turn to collect if no other process has it; return whether this object has it now."""
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.mine = True
        return self.mine

    def give_back(self) -> None:
        self._file.close()

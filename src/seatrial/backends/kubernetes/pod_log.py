"""One pod's log into the run's folder: read from where the last reader left it, taken apart, numbered by node."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial import events, frames
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.pods import Pod
from seatrial.events import EventLog

_NUMBERS = {frames.STDOUT: 1, frames.STDERR: 2}
_NAMES = {1: "stdout.log", 2: "stderr.log"}
_WIDTH = 48


class Sink:
    """The run's folder as the place where logs go.

    Args:
        nodes: with more than one, every line of output begins with ``[rank1]: `` and every event tells its node.
    """

    def __init__(self, run_dir: Path, nodes: int) -> None:
        self.folder = run_dir
        self._many = nodes > 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._logs = {number: os.open(run_dir / name, flags, 0o644) for number, name in _NAMES.items()}
        self._index = os.open(run_dir / "output.idx", flags, 0o644)
        self._events = os.open(run_dir / "events.jsonl", flags, 0o644)
        self._host = EventLog(str(run_dir / "events.jsonl"), "host")
        self._told = _told(run_dir / "events.jsonl")
        self._unfinished: dict[tuple[int, int], bytes] = {}

    def output(self, node: int, number: int, data: bytes, unix_s: float) -> None:
        """A line of stdout (1) or stderr (2), or a piece of one."""
        if self._many:  # pieces of different nodes must not end up in one line
            line = self._unfinished.pop((node, number), b"") + data
            if not line.endswith(b"\n"):
                self._unfinished[node, number] = line
                return
            data = line if line.startswith(b"[rank") else b"[rank%d]: %s" % (node, line)
        os.write(self._logs[number], data)
        os.write(self._index, b"%.6f %d %d\n" % (unix_s, number, len(data)))

    def evidence(self, node: int, line: bytes, unix_s: float) -> None:
        """A line of a pod's events.jsonl. One without a time gets the log's: here its neighbours tell nothing."""
        event = events.parse(line)
        if event is None:
            return
        if event["t"] is None:
            event["t"] = round(unix_s, 4)
        os.write(self._events, events.encode({**event, "node": node} if self._many else event))

    def host_event(self, type: str, **keys: Any) -> None:
        """An event of the host, once: whoever follows a run again sees the same pods again."""
        mark = _mark({**keys, "type": type})
        if mark not in self._told:
            self._told.add(mark)
            self._host.write(type, **keys)

    def cursor(self, pod: Pod) -> Cursor:
        folder = self.folder / "pods"
        folder.mkdir(exist_ok=True)
        return Cursor(folder / f"{pod.name}-{pod.restarts}.cursor")

    def close(self) -> None:
        for (node, number), data in self._unfinished.items():
            os.write(self._logs[number], b"[rank%d]: %s\n" % (node, data))
        for descriptor in (*self._logs.values(), self._index, self._events):
            os.close(descriptor)
        self._host.close()


def _told(path: Path) -> set[str]:
    """Marks of the host's events so far."""
    with path.open("rb") as file:
        read = (events.parse(line) for line in file if b'"source":"host"' in line)
        return {_mark(event) for event in read if event is not None}


def _mark(event: Mapping[str, Any]) -> str:
    """What an event says, whenever."""
    return json.dumps({key: value for key, value in event.items() if key not in ("t", "source")}, sort_keys=True)


class Cursor:
    """How far a pod's log has been read: the last line's time in nanoseconds, and how many lines of that time.

    One write a line into a file of one record: a reader that is killed loses its place by one line at most.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fields = os.pread(self._descriptor, _WIDTH, 0).split()
        self.time_ns, self.lines = (int(fields[0]), int(fields[1])) if len(fields) == 2 else (0, 0)

    def advance(self, time_ns: int) -> None:
        self.time_ns, self.lines = time_ns, self.lines + 1 if time_ns == self.time_ns else 1
        os.pwrite(self._descriptor, b"%d %d" % (self.time_ns, self.lines) + b" " * 8, 0)

    def close(self) -> None:
        os.close(self._descriptor)


class PodLog:
    """The log of a pod's container."""

    def __init__(self, cluster: Cluster, namespace: str, pod: Pod, sink: Sink) -> None:
        self._cluster, self._pod, self._sink = cluster, pod, sink
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}/log"

    async def read(self, *, follow: bool) -> None:
        """Everything from the cursor on; with ``follow`` until the container ends."""
        cursor = self._sink.cursor(self._pod)
        decoder = frames.Decoder()
        params = {"timestamps": "true", **({"follow": "true"} if follow else {})}
        begin_ns, skip = cursor.time_ns, cursor.lines
        if begin_ns:
            params["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin_ns // 10**9))
        try:
            async for line in self._cluster.lines(self._path, **params):
                stamp, _, text = line.partition(b" ")
                time_ns = parse_time_ns(stamp)
                if time_ns is None:
                    continue  # a message of the kubelet in place of a log
                if time_ns < begin_ns:
                    continue
                if time_ns == begin_ns and skip:
                    skip -= 1
                    continue
                self._take(decoder, text, time_ns)
                cursor.advance(time_ns)
        finally:
            cursor.close()

    def _take(self, decoder: frames.Decoder, text: bytes, time_ns: int) -> None:
        kind, data = decoder.feed(text)
        if kind != frames.EVIDENCE:
            self._sink.output(self._pod.node, _NUMBERS[kind], data, time_ns / 1e9)
        elif data:
            self._sink.evidence(self._pod.node, data, time_ns / 1e9)


def parse_time_ns(stamp: bytes) -> int | None:
    """RFC 3339 with up to nine decimals, in UTC or with an offset, as Unix time in ns; None when it is none."""
    text = stamp.decode("ascii", "replace")
    try:
        seconds = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    rest = text[19:]
    fraction = 0
    if rest.startswith("."):
        digits = rest[1:].rstrip("Z").split("+")[0].split("-")[0]
        fraction = int(digits.ljust(9, "0")[:9]) if digits.isdigit() else 0
        rest = rest[1 + len(digits) :]
    if rest not in ("Z", ""):
        hours, _, minutes = rest[1:].partition(":")
        seconds -= (1 if rest[0] == "+" else -1) * (int(hours) * 3600 + int(minutes or 0) * 60)
    return seconds * 10**9 + fraction

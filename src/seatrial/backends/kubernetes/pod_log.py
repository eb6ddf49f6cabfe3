"""One pod's log into the run's folder: read from where the last reader left it, taken apart, numbered by node."""

from __future__ import annotations

import calendar
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial import frames
from seatrial.backends.collected import Sink
from seatrial.backends.kubernetes.pods import Pod

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

_WIDTH = 48


class Cursor:
    """How far a pod's log has been read: the last line's time in nanoseconds, and how many lines of that time.

    One write a line into a file of one record: a reader that is killed loses its place by one line at most.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fields = os.pread(self._descriptor, _WIDTH, 0).split()
        self.time_ns, self.lines = (int(fields[0]), int(fields[1])) if len(fields) == 2 else (0, 0)

    @classmethod
    def of(cls, folder: Path, pod: Pod) -> Cursor:
        """A pod's, in the run's record."""
        (folder / "pods").mkdir(exist_ok=True)
        return cls(folder / "pods" / f"{pod.name}-{pod.restarts}.cursor")

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
        cursor = Cursor.of(self._sink.folder, self._pod)
        decoder = frames.Decoder()
        params = {"timestamps": "true", **({"follow": "true"} if follow else {})}
        if self._pod.container:  # must be named where the cluster has added a sidecar
            params["container"] = self._pod.container
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
                self._sink.take(decoder, text, self._pod.node)
                self._sink.flush()
                cursor.advance(time_ns)
        finally:
            cursor.close()


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

"""``dashboard --metrics-only``: readings served to Prometheus. Scrapes get the last one; only the clock makes new ones.

A reading that fails, or does not end, is not replaced by the one before: its series are left out, as Prometheus wants
it of a value that is not known any more (they then end in its graphs, and alerts on ``absent()`` fire).
Source: https://prometheus.io/docs/instrumenting/writing_exporters/#failed-scrapes
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.telemetry.metrics import render
from seatrial.telemetry.reading import Read

Runs = Callable[[], Sequence[Mapping[str, Any]]]

#: A reading is old after so many intervals, and not before so many seconds: at a driver reset NVML takes some itself.
STALE_INTERVALS = 3
STALE_S = 10.0


@dataclass(frozen=True)
class _Served:
    """The exposition, plain and gzipped, and when its reading was made; ``good`` when it has one."""

    plain: bytes
    zipped: bytes
    read_s: float
    good: bool


class Exporter:
    """Reads once an interval in a thread of its own and keeps the text.

    Args:
        read: one reading. runs: the live runs.
    """

    def __init__(self, read: Read, runs: Runs, *, interval_s: float = 1.0) -> None:
        self._read, self._runs, self._interval_s = read, runs, interval_s
        self._stale_s = max(STALE_S, STALE_INTERVALS * interval_s)
        self._hostname = socket.gethostname()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="readings", daemon=True)
        self.readings = self.failures = 0
        self._served = self._renew()

    def start(self) -> None:
        """Begin to read once an interval."""
        self._thread.start()

    def stop(self) -> None:
        """End reading; a reading that hangs in NVML is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    @property
    def text(self) -> tuple[bytes, bytes]:
        """The exposition, plain and gzipped; without a reading's series when there is none, or it is old."""
        served = self._served
        if served.good and time.monotonic() - served.read_s > self._stale_s:
            body = self._own(good=False)
            return body, gzip.compress(body, 1)
        return served.plain, served.zipped

    def _go_on(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while not self._done.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            self._served = self._renew()

    def _renew(self) -> _Served:
        cpu_s, begun_s = time.process_time(), time.monotonic()
        try:
            body = render(self._read(), self._live_runs(), self._hostname)
            self.readings += 1
            good = True
        except Exception:  # noqa: BLE001  this thread lives as long as the server
            self.failures += 1
            body, good = b"", False
        body += self._own(good=good, cpu_s=time.process_time() - cpu_s)
        return _Served(body, gzip.compress(body, 1), begun_s, good)

    def _live_runs(self) -> Sequence[Mapping[str, Any]]:
        """What cannot be read of the runs takes nothing from GPUs and containers."""
        try:
            return self._runs()
        except Exception:  # noqa: BLE001  as above
            self.failures += 1
            return []

    def _own(self, *, good: bool, cpu_s: float | None = None) -> bytes:
        """The exporter's own series, which are always there."""
        rows = [
            ("readings_total", "counter", "Readings since start.", f"{self.readings}"),
            ("failed_readings_total", "counter", "Failed readings, of runs or anything else.", f"{self.failures}"),
            (
                "reading_ok",
                "gauge",
                "Whether the current reading succeeded; if not, its series are omitted.",
                f"{good:d}",
            ),
        ]
        if cpu_s is not None:
            rows.append(("reading_cpu_seconds", "gauge", "CPU time of the last reading.", f"{cpu_s:.6f}"))
        return "".join(
            f"# HELP seatrial_exporter_{name} {help}\n# TYPE seatrial_exporter_{name} {kind}\n"
            f"seatrial_exporter_{name} {value}\n"
            for name, kind, help, value in rows
        ).encode()

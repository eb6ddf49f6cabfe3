"""Feed: one thread that reads, however many pages look; each reading is turned into bytes once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from seatrial.monitor.reading import Read, unread

#: Readings that a page gets at once when it opens: ten minutes at one a second.
HISTORY = 600

#: Readings of a GPU that the graphs need; of the others only the latest is shown.
_GRAPHED = ("index", "mig", "name", "uuid", "utilization_pct", "sm_activity_pct", "tensor_activity_pct",
            "dram_activity_pct", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w")  # fmt: skip

#: Readings that a page which was busy gets all at once when it is ready again; older ones are lost to it.
CATCH_UP = 60

#: A comment line keeps proxies from closing a stream in which nothing happens.
_KEEP_ALIVE_S = 15.0


class Feed:
    """Readings for server-sent events.

    Args:
        read: returns one reading. on_reading: called with each and its CPU time, with None if it failed.
        tend: called after each, in the same thread, for slow housekeeping.
    """

    def __init__(
        self,
        read: Read,
        *,
        interval_s: float = 1.0,
        on_reading: Callable[[dict[str, Any] | None, float], None] = lambda reading, cpu_s: None,
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, self._interval_s, self._on_reading, self._tend = read, interval_s, on_reading, tend
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=CATCH_UP)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="readings", daemon=True)

    def start(self) -> None:
        """Begin to read. Call from the server's event loop."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._thread.start()

    def stop(self) -> None:
        """End the readings and every open stream. Call from the server's event loop."""
        self._done.set()
        if self._changed is not None:
            self._wake()

    def history(self) -> list[dict[str, Any]]:
        """Return the last readings, as much of them as is graphed."""
        return list(self._history)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events, one a reading, beginning with the newest."""
        assert self._changed is not None
        seen = self._recent[-1][0] - 1 if self._recent else 0
        while not self._done.is_set():
            for number, event in list(self._recent):
                if number > seen:
                    seen = number
                    yield event
            if self._recent and self._recent[-1][0] > seen:
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), _KEEP_ALIVE_S)
            except asyncio.TimeoutError:
                yield b": still here\n\n"

    def _read_on(self) -> None:
        due_s, number = time.monotonic(), 0
        while not self._done.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            reading = self._reading()
            graphed = [{key: gpu.get(key) for key in _GRAPHED} for gpu in reading["gpus"]]
            self._history.append({"t": reading["t"], "gpus": graphed, "cpu_cores": reading["machine"]["cpu_cores"]})
            number += 1
            event = b"data: " + json.dumps(reading, separators=(",", ":")).encode() + b"\n\n"
            self._recent.append((number, event))
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the server has ended meanwhile
                return
            with contextlib.suppress(Exception):  # one broken run must not end the readings of all
                self._tend()

    def _reading(self) -> dict[str, Any]:
        """Read once; a page shows an error with no values in place of the last ones."""
        begun_s = time.thread_time()
        try:
            reading = self._read()
        except Exception as error:  # noqa: BLE001  this thread lives as long as the server
            self._on_reading(None, 0.0)
            return unread(f"The reading failed: {type(error).__name__}: {error}")
        self._on_reading(reading, time.thread_time() - begun_s)
        return reading

    def _wake(self) -> None:
        """Wake every stream; later ones wait for the next reading."""
        assert self._changed is not None
        self._changed.set()
        self._changed = asyncio.Event()

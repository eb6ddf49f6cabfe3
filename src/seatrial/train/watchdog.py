"""A watch over ranks that train together: one that makes no progress is named, with what it was doing.

Every rank writes its progress to the store of torchrun from a thread of its own, and reads the others'. A rank whose
process is gone or stopped leaves its heartbeat old; one that is stuck keeps a fresh heartbeat but an old step. A rank
that tests, saves or prepares an epoch makes no step either, and those that wait for it make none: that is not a hang.
Nor is a slow step on a CPU, which takes processor time. (On a GPU waiting takes it, too.)
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from typing import Any

from seatrial.train.distributed import Ranks, open_store

BEATS_PER_LIMIT = 4
EXIT_HUNG = 1
#: Share of a core that a rank computing a step takes at least under load; waiting for Gloo takes less than 0.01.
COMPUTING_CORES = 0.05


class Watchdog:
    """Ends this process when a rank has made no step for ``limit_s``, after naming it. Does nothing when alone."""

    def __init__(self, ranks: Ranks, limit_s: float | None) -> None:
        self._ranks, self._limit_s = ranks, limit_s
        self._step, self._changed, self._stepping = 0, time.time(), False
        self._cpu_s = time.process_time()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watchdog:
        if self._ranks.world > 1 and self._limit_s is not None:
            store = open_store(-1, self._ranks.world)  # a second connection: one waits while the other asks
            self._thread = threading.Thread(target=self._watch, args=(store, self._limit_s), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def beat(self, step: int) -> None:
        """Note that this rank has queued its steps up to ``step``, and goes on with the next."""
        self._step, self._changed, self._stepping = step, time.time(), True

    def pause(self) -> None:
        """Note that this rank makes no steps until the next ``beat``."""
        self._stepping = False

    def _watch(self, store: Any, limit_s: float) -> None:
        pause_s = limit_s / BEATS_PER_LIMIT
        while not self._ended.wait(pause_s):
            before_s, self._cpu_s = self._cpu_s, time.process_time()
            if self._ranks.device.type == "cpu" and self._cpu_s - before_s > COMPUTING_CORES * pause_s:
                self._changed = time.time()
            beat = {"step": self._step, "changed": self._changed, "stepping": self._stepping, "beat": time.time()}
            where = {"host": os.uname().nodename, "pid": os.getpid()}
            store.set(f"beat/{self._ranks.rank}", json.dumps({**beat, **where}))
            keys = [f"beat/{rank}" for rank in range(self._ranks.world)]
            beats = [json.loads(store.get(key)) if store.check([key]) else None for key in keys]
            if late := self._late(beats, limit_s):
                self._report(late, beats)
                os._exit(EXIT_HUNG)
        store.set(f"beat/{self._ranks.rank}", json.dumps({"finished": True}))

    def _late(self, beats: list[dict[str, Any] | None], limit_s: float) -> list[int]:
        """Return the ranks that do not answer, else those that are behind, or all, where no rank has anything to do."""
        now = time.time()
        known = {rank: beat for rank, beat in enumerate(beats) if beat is not None and "finished" not in beat}
        if silent := [rank for rank, beat in known.items() if now - beat["beat"] > limit_s]:
            return silent
        if any(not beat["stepping"] or now - beat["changed"] <= limit_s for beat in known.values()):
            return []
        slowest = min((beat["step"] for beat in known.values()), default=0)
        return [rank for rank, beat in known.items() if beat["step"] == slowest]

    def _report(self, late: list[int], beats: list[dict[str, Any] | None]) -> None:
        for rank in late:
            beat = beats[rank] or {}
            silent = time.time() - beat.get("beat", 0.0) > (self._limit_s or 0.0)
            state = "does not answer" if silent else "makes no step"
            where = f"process {beat.get('pid')} on {beat.get('host')}"
            print(f"error: rank {rank} ({where}) {state} since step {beat.get('step')}", file=sys.stderr)
        print(f"rank {self._ranks.rank} is here:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)

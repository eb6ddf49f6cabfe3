"""Reports: what has been served so far, as a line of $SEATRIAL_EVENTS every two seconds and at the end."""

from __future__ import annotations

import os
import sys
import time

from seatrial.events import EVENTS_VARIABLE, Served, StepLog
from seatrial.serve.counts import Counts
from seatrial.serve.served_model import WarmUp

EVERY_S = 2.0


class Reports:
    """Writes them; does nothing outside of a run, and before the model is ready."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        path = os.environ.get(EVENTS_VARIABLE)
        self._log = StepLog(path) if path else None
        self._warm_up: WarmUp | None = None
        self._ready_s = self._next_s = 0.0

    def ready(self, warm_up: WarmUp) -> None:
        """The first request is let in."""
        self._warm_up = warm_up
        self._ready_s = time.monotonic()

    def tick(self) -> None:
        """One if it is time."""
        if self._log is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + EVERY_S
            self.emit()

    def emit(self) -> None:
        """One now. Numbers since the start; a full disk costs the report and no request."""
        if self._log is None or self._warm_up is None:
            return
        totals = self._counts.totals()
        served = Served(
            requests=totals.inferences,
            errors={str(status): count for status, count in totals.errors.items()},
            p50_ms=totals.percentile_ms(50),
            p95_ms=totals.percentile_ms(95),
            p99_ms=totals.percentile_ms(99),
            batches={str(size): count for size, count in totals.batches.items()},
            queue_peak=totals.queue_peak,
            seconds=round(time.monotonic() - self._ready_s, 3),
            warm_up_s=round(self._warm_up.seconds, 3),
            examples=self._warm_up.examples,
            largest_difference=self._warm_up.largest_difference,
        )
        try:
            self._log.report(served)
        except OSError as error:
            print(f"a report was not written: {error.strerror}", file=sys.stderr, flush=True)

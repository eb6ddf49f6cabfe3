"""Count requests, batches and latencies of every process of the server, in memory that all of them share.

Each process has a place of its own, so that none waits for another. Counts outlive their process: a front that is
started again goes on with the numbers of the one before. Totals are the sums over all places.
"""

from __future__ import annotations

import math
import mmap
import os
from bisect import bisect_left
from itertools import accumulate, product
from typing import NamedTuple

#: Statuses that the server gives; any other is counted as the last.
STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 431, 500, 503, 504, 0)
#: Requests to the model, and those for pages, probes and scrapes.
KINDS = ("predict", "infer", "other")
#: Latency buckets: each an eighth of an octave (9 %) wide, the first ends at 2⁻¹⁴ s (61 µs), the last at 2⁷ s.
PER_OCTAVE, FIRST_EXPONENT, OCTAVES = 8, -14, 21
BUCKETS = PER_OCTAVE * OCTAVES + 2
#: Sizes of batches are counted one by one up to this.
MOST_BATCH = 1024

_LATENCY_AT = len(KINDS) * len(STATUSES)  # behind the statuses
_LATENCY_SUM_AT, _IN_FLIGHT_AT, _PEAK_AT, _ABANDONED_AT, _CONNECTIONS_AT, _COMPUTE_NS_AT, _BATCHES_AT = (
    _LATENCY_AT + BUCKETS + place for place in range(7)
)
_PLACE = _BATCHES_AT + MOST_BATCH + 1

_STATUS_INDEX = {status: index for index, status in enumerate(STATUSES)}


class CounterTotals(NamedTuple):
    """Sums over all places.

    ``requests``: (kind, status) → how many. ``latencies``: of each bucket, of requests that reached the model.
    ``batches``: size → how many. ``abandoned``: rows whose client left before they were computed.
    """

    requests: dict[tuple[str, int], int]
    latencies: list[int]
    latency_sum_s: float
    in_flight: int
    queue_peak: int
    abandoned: int
    connections: int
    batches: dict[int, int]
    compute_s: float

    @property
    def inferences(self) -> int:
        """Count requests to the model, answered or refused."""
        return sum(count for (kind, _), count in self.requests.items() if kind != "other")

    @property
    def errors(self) -> dict[int, int]:
        """Count them by status, without 200."""
        found: dict[int, int] = {}
        for (kind, status), count in self.requests.items():
            if kind != "other" and status != 200:
                found[status] = found.get(status, 0) + count
        return found

    def percentile_ms(self, percent: float) -> float | None:
        """Return the upper end of the percentile's bucket; None without a request."""
        up_to = [*accumulate(self.latencies)]
        rank = max(1, math.ceil(up_to[-1] * percent / 100))
        return 1000 * upper_s(bisect_left(up_to, rank)) if up_to[-1] else None


def upper_s(bucket: int) -> float:
    """Return where a latency bucket ends; infinity for the last."""
    return math.inf if bucket == BUCKETS - 1 else float(2.0 ** (FIRST_EXPONENT + bucket / PER_OCTAVE))


class Counters:
    """The memory, of this ``descriptor`` from ``Counters.create``, and one process's place among so many."""

    def __init__(self, descriptor: int, places: int, place: int) -> None:
        self.descriptor, self.places = descriptor, places
        self._memory = mmap.mmap(descriptor, places * _PLACE * 8)
        self._all = memoryview(self._memory).cast("q")
        self._own = self._all[place * _PLACE : (place + 1) * _PLACE]
        self._in_flight = [number * _PLACE + _IN_FLIGHT_AT for number in range(places)]
        self._own[_IN_FLIGHT_AT] = self._own[_CONNECTIONS_AT] = 0  # of a process that is gone

    @classmethod
    def create(cls, places: int, place: int = 0) -> Counters:
        """Make new memory, all zero."""
        descriptor = os.memfd_create("seatrial-serve", 0)
        os.ftruncate(descriptor, places * _PLACE * 8)
        return cls(descriptor, places, place)

    def answered(self, kind: int, status: int) -> None:
        """Count a request of ``KINDS[kind]`` with this status."""
        self._own[kind * len(STATUSES) + _STATUS_INDEX.get(status, len(STATUSES) - 1)] += 1

    def took(self, seconds: float) -> None:
        """Count a request that reached the model, and the time until its answer."""
        steps = math.ceil((math.log2(seconds) - FIRST_EXPONENT) * PER_OCTAVE) if seconds > 0 else 0
        self._own[_LATENCY_AT + min(max(steps, 0), BUCKETS - 1)] += 1
        self._own[_LATENCY_SUM_AT] += int(seconds * 1e9)

    def enter(self, rows: int, limit: int) -> bool:
        """Count rows that begin to wait; return False if they would exceed the limit."""
        total = rows
        for at in self._in_flight:
            total += self._all[at]
        if total > limit:
            return False
        own = self._own
        own[_IN_FLIGHT_AT] += rows
        if total > own[_PEAK_AT]:
            own[_PEAK_AT] = total
        return True

    def leave(self, rows: int) -> None:
        """Count rows that no longer wait."""
        self._own[_IN_FLIGHT_AT] -= rows

    def waiting(self) -> int:
        """Return the rows that wait or are computed, of all fronts."""
        return sum(self._all[at] for at in self._in_flight)

    def connected(self, change: int) -> None:
        """Count a connection in (1) or out (-1)."""
        self._own[_CONNECTIONS_AT] += change

    def computed(self, size: int, nanoseconds: int) -> None:
        """Count a batch."""
        self._own[_BATCHES_AT + min(size, MOST_BATCH)] += 1
        self._own[_COMPUTE_NS_AT] += nanoseconds

    def abandoned(self, rows: int) -> None:
        """Count rows that were left out since their clients had left."""
        self._own[_ABANDONED_AT] += rows

    def forget(self, place: int) -> None:
        """Remove the waiting rows and connections of a process that is gone."""
        self._all[place * _PLACE + _IN_FLIGHT_AT] = self._all[place * _PLACE + _CONNECTIONS_AT] = 0

    def totals(self) -> CounterTotals:
        """Add up all places."""
        sums = [sum(self._all[index::_PLACE]) for index in range(_PLACE)]
        peaks = [self._all[place * _PLACE + _PEAK_AT] for place in range(self.places)]
        requests = {each: count for each, count in zip(product(KINDS, STATUSES), sums, strict=False) if count}
        return CounterTotals(
            requests=requests,
            latencies=sums[_LATENCY_AT:_LATENCY_SUM_AT],
            latency_sum_s=sums[_LATENCY_SUM_AT] / 1e9,
            in_flight=sums[_IN_FLIGHT_AT],
            queue_peak=max(peaks),
            abandoned=sums[_ABANDONED_AT],
            connections=sums[_CONNECTIONS_AT],
            batches={size: sums[_BATCHES_AT + size] for size in range(MOST_BATCH + 1) if sums[_BATCHES_AT + size]},
            compute_s=sums[_COMPUTE_NS_AT] / 1e9,
        )

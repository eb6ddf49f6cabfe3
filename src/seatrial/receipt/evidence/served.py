"""Served: what a server says that it has done. It is the target's own word, so each number is checked or left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.receipt.evidence.fields import mapping, number

#: Counts above this are no counts; latencies and times above a year are none.
_MOST_COUNT = 10**15
_MOST_S = 366 * 86400.0

#: Kept of each table; a server that makes up names for ever must not make the receipt grow for ever.
MAX_STATUSES, MAX_SIZES = 16, 64
_STATUS = re.compile(r"[1-5][0-9]{2}|0")
_SIZE = re.compile(r"[1-9][0-9]{0,6}")


@dataclass(frozen=True)
class Served:
    """The last report of a server.

    Attributes:
        at_s: when it was written, in seconds since the first event.
        errors: HTTP status → answers. batches: rows in a batch → batches, smallest first.
        seconds: since it was ready.
    """

    at_s: float
    requests: int
    seconds: float
    errors: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    queue_peak: int | None = None
    warm_up_s: float | None = None
    examples: int | None = None
    largest_difference: float | None = None


def read_served(lines: Iterable[tuple[float, Mapping[str, Any]]]) -> Served | None:
    """The last of (seconds since the first event, ``served`` event) pairs that says how many and how long."""
    for at_s, event in reversed(list(lines)):
        requests, seconds = _count(event.get("requests")), _up_to(event.get("seconds"), _MOST_S)
        if requests is None or seconds is None:
            continue
        p50, p95, p99 = (_up_to(event.get(key), _MOST_S * 1000) for key in ("p50_ms", "p95_ms", "p99_ms"))
        if None not in (p50, p95, p99) and not p50 <= p95 <= p99:  # type: ignore[operator]
            p50 = p95 = p99 = None  # no distribution has such percentiles
        return Served(
            at_s=at_s,
            requests=requests,
            seconds=seconds,
            errors=dict(sorted(_table(event.get("errors"), _STATUS).items())[:MAX_STATUSES]),
            batches=_sizes(event.get("batches")),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            queue_peak=_count(event.get("queue_peak")),
            warm_up_s=_up_to(event.get("warm_up_s"), _MOST_S),
            examples=_count(event.get("examples")),
            largest_difference=_up_to(event.get("largest_difference"), 1e30),
        )
    return None


def _sizes(value: Any) -> dict[int, int]:
    """The sizes with the most batches, in order of size."""
    sizes = {int(size): count for size, count in _table(value, _SIZE).items()}
    kept = sorted(sizes, key=lambda size: (-sizes[size], size))[:MAX_SIZES]
    return {size: sizes[size] for size in sorted(kept)}


def _table(value: Any, key: re.Pattern[str]) -> dict[str, int]:
    """Counts above zero whose names are what they can be."""
    found = {}
    for name, count in mapping(value).items():
        if key.fullmatch(name) and (checked := _count(count)):
            found[name] = checked
    return found


def _count(value: Any) -> int | None:
    result = number(value)
    return int(result) if result is not None and 0 <= result <= _MOST_COUNT and result == int(result) else None


def _up_to(value: Any, most: float) -> float | None:
    result = number(value)
    return result if result is not None and 0 <= result <= most else None

"""Limits of time that hold on a machine that is busy with other tests, or slower than the one they were set on.

Measure again what took too long, and allow as much more as work of a known length takes at this moment.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: CPU seconds that parsing 10,000 lines took on the machine that the limits were set on (2 cores, Python 3.11.7): the
#: least of twenty, during other tests. The same machine took 0.33 to 0.68 hours later, nearly idle.
KNOWN_WORK_S = 0.18


def slowness(clock: Callable[[], float] = time.process_time) -> float:
    """Return how many times slower this machine is now, 1.0 or more; ``time.monotonic`` counts other processes, too."""
    began = clock()
    ast.parse("x = f(a, b)\n" * 10_000)
    return max(1.0, (clock() - began) / KNOWN_WORK_S)


def within(limit_s: float, call: Callable[[], T], attempts: int = 3) -> T:
    """Return the value of ``call``; fail if each attempt exceeds ``limit_s`` by more than a busy machine explains.

    ``call`` must be one that can be repeated.
    """
    took_s = []
    for _ in range(attempts):
        began = time.monotonic()
        answer = call()
        took_s.append(time.monotonic() - began)
        if took_s[-1] < limit_s or took_s[-1] < limit_s * slowness(time.monotonic):
            return answer
    raise AssertionError(f"took {', '.join(f'{each:.1f}' for each in took_s)} s, of {limit_s:.1f}")


def until(there: Callable[[], T], what: object = "it", timeout_s: float = 300) -> T:
    """Return the value of ``there`` once it is true; fail after so long, or longer on a busy machine."""
    began_s = time.monotonic()
    while not (found := there()):
        waited_s = time.monotonic() - began_s
        in_time = waited_s < timeout_s or waited_s < timeout_s * slowness(time.monotonic)
        assert in_time, f"{what() if callable(what) else what} did not come"
        time.sleep(0.05)
    return found

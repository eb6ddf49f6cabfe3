"""One case against one parser: what may come out, how long it may take, and how much memory."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pace import slowness
from seatrial.errors import SeatrialError

CORE_CASES = 30
MOST_SECONDS = 2.0
MOST_BYTES = 200 * 2**20

#: Files of an earlier case are gone when the next one runs.
_SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def attack(
    parse: Callable[[Any], object],
    inputs: st.SearchStrategy[Any],
    cases: int,
    refuses: type[Exception] = SeatrialError,
) -> None:
    """Call ``parse`` with many inputs; fails at the first that ends in another error, or takes too much."""

    @settings(max_examples=cases, derandomize=cases <= CORE_CASES, **_SETTINGS)
    @given(inputs)
    def every_case(value: Any) -> None:
        one_case(parse, value, refuses)

    every_case()


def one_case(parse: Callable[[Any], object], value: Any, refuses: type[Exception] = SeatrialError) -> Exception | None:
    """The error that the case ended with, or None. Fails when it is none of ours, or empty."""
    most_before = _most_bytes()
    refused, seconds = _timed(parse, value, refuses)
    if seconds >= MOST_SECONDS:  # measured again, next to work of a known length
        most = MOST_SECONDS * slowness()
        seconds = min(seconds, _timed(parse, value, refuses)[1])
        assert seconds < most, f"took {seconds:.1f} s, of {most:.1f}"
    grown = _most_bytes() - most_before
    assert grown < MOST_BYTES, f"took {grown / 2**20:.0f} MB"
    if refused is not None:
        assert_reported(refused)
    return refused


def _timed(parse: Callable[[Any], object], value: Any, refuses: type[Exception]) -> tuple[Exception | None, float]:
    gc.freeze()  # what thousands of other tests left in this process is not the parser's cost
    began = time.process_time()
    try:
        parse(value)
    except refuses as error:
        return error, time.process_time() - began
    else:
        return None, time.process_time() - began
    finally:
        gc.unfreeze()


def assert_reported(error: Exception) -> None:
    """A sentence that any terminal can print, and not the whole file again."""
    message = str(getattr(error, "message", error))
    assert message.strip(), "it is empty"
    for text in (message, getattr(error, "cause", None), getattr(error, "run", None)):
        if text is not None:
            text.encode()
            assert len(text) < 3000, f"{len(text)} characters"


def _most_bytes() -> int:
    """The most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

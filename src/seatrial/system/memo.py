"""A memo of engines' answers that lives as long as one command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_GOOD_FOR_S = 60.0

_lock = threading.Lock()
_open = 0
_answers: dict[Hashable, tuple[float, object]] = {}


@contextmanager
def remembering() -> Iterator[None]:
    """Remember answers for a minute, in every thread, while the context is open."""
    global _open
    with _lock:
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _answers.clear()


def remembered(question: Hashable, ask: Callable[[], T], worth: Callable[[T], bool]) -> T:
    """Return the answer to a question, an earlier one if that is fresh.

    Args:
        worth: returns True if an answer may be given again; "not found" may not.
    """
    with _lock:
        known = _answers.get(question) if _open else None
    if known is not None and time.monotonic() - known[0] < _GOOD_FOR_S:
        answer: T = known[1]  # type: ignore[assignment]  # of the same question
        return answer
    answer = ask()
    with _lock:
        if _open and worth(answer):
            _answers[question] = (time.monotonic(), answer)
    return answer

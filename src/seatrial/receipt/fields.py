"""Values of unknown JSON. Any script may append to events.jsonl, so no type in it is taken for granted."""

from __future__ import annotations

import re
from typing import Any

#: Longest text copied from a run into its receipt; a line of a log can be megabytes.
MAX_TEXT = 2000

#: Largest measurement, so that sums of such numbers stay finite.
MAX_NUMBER = 1e100

#: Terminal escape sequences (CSI and OSC, ECMA-48 sections 5.4 and 8.3.89).
_ESCAPES = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
#: Characters that turn the direction of writing (Unicode Standard Annex 9, section 2).
_TURNS = r"\u202a-\u202e\u2066-\u2069"
#: Includes every other control character: a receipt is printed to terminals, and output must not be able to steer them.
_CONTROL = re.compile(rf"{_ESCAPES}|[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNS}]")
#: The same but for the carriage return, which a line of a log is cut at.
_CONTROL_IN_LINE = re.compile(rf"{_ESCAPES}|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_TURNS}]")


def number(value: Any) -> float | None:
    """Return a number of usable size, or None; JSON's true, false, NaN and 1e999 are not numbers."""
    if type(value) not in (int, float):
        return None
    try:
        result = float(value)
    except OverflowError:  # JSON integers have no bounds
        return None
    return result if abs(result) <= MAX_NUMBER else None


def whole(value: Any) -> int | None:
    """Return a number as an integer, or None."""
    result = number(value)
    return None if result is None else int(result)


def text(value: Any) -> str | None:
    """Return a string that every renderer can print, or None if nothing is left to print."""
    return (clean(value) or None) if isinstance(value, str) else None


def mapping(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return an array (of a record: a tuple), or an empty one."""
    return list(value) if isinstance(value, (list, tuple)) else []


def clean(value: str) -> str:
    """Remove control characters and lone surrogates; return one line of at most MAX_TEXT characters."""
    printable = _CONTROL.sub("", value[: 4 * MAX_TEXT]).encode("utf-8", "replace").decode()
    line = " ".join(printable.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def clean_line(value: str) -> str:
    """Remove control characters from a line of a log; its indentation and its tabs stay."""
    return _CONTROL_IN_LINE.sub("", value)

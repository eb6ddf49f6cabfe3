"""Values of unknown JSON. Any script may append to events.jsonl, so no type in it is taken for granted."""

from __future__ import annotations

import re
from typing import Any

#: Longest text taken over from a run into its receipt; a line of a log can be megabytes.
MAX_TEXT = 2000

#: Nothing measured or learned is larger, and sums of such numbers stay finite.
MAX_NUMBER = 1e100

#: Terminal escape sequences (CSI and OSC, ECMA-48 sections 5.4 and 8.3.89), then every other control character, and
#: those that turn the direction of writing round (Unicode Standard Annex 9, section 2).
#: A receipt is printed to terminals: what a run printed must not be able to steer them.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def number(value: Any) -> float | None:
    """A number of usable size, or None. JSON's true and false are no numbers; NaN and 1e999 are none to us."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:  # JSON integers have no bounds
        return None
    return result if abs(result) <= MAX_NUMBER else None


def whole(value: Any) -> int | None:
    """A number as an integer, or None."""
    result = number(value)
    return None if result is None else int(result)


def text(value: Any) -> str | None:
    """A string that every renderer can print, or None when there is nothing to print."""
    return (clean(value) or None) if isinstance(value, str) else None


def mapping(value: Any) -> dict[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """An array, or an empty one."""
    return value if isinstance(value, list) else []


def clean(value: str) -> str:
    """Without control characters and lone surrogates, on one line, at most MAX_TEXT characters."""
    printable = _CONTROL.sub("", value[: 4 * MAX_TEXT]).encode("utf-8", "replace").decode()
    line = " ".join(printable.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"

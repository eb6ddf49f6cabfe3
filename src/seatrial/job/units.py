"""Sizes and durations as people type them, and back. The one place that knows the units.

A single letter is Docker's (``512m``, ``8g``: powers of 1024, docs.docker.com/reference/cli/docker/container/run),
``KB MB GB TB`` are SI (powers of 1000), ``KiB MiB GiB TiB`` are IEC (powers of 1024), for which Kubernetes writes
``Gi``. Case does not matter.
"""

from __future__ import annotations

import re

from seatrial.errors import UsageError

_BYTES: dict[str, int] = {
    "b": 1,
    **{unit: 1024**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}{end}": 1024**power for power, unit in enumerate("kmgt", 1) for end in ("i", "ib")},
}
_SECONDS: dict[str, float] = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_AMOUNT = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[a-z]+\s*)+")
_SIZE_EXAMPLES = "512m, 8GB or 2GiB"


def parse_bytes(text: str) -> int:
    """Parse a size with its unit: ``"4GB"`` → 4000000000, ``"512m"`` → 536870912. Raises UsageError, also below 1."""
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTES:
        what = "a size needs a unit" if re.fullmatch(_NUMBER, text.strip()) else "expected a size"
        raise UsageError(f"{what}, such as {_SIZE_EXAMPLES}; got {text!r}", instead=(text, [_like(text, "8", "g")]))
    size = round(float(match[1]) * _BYTES[match[2]])
    if size < 1:
        raise UsageError(f"a size must be at least one byte, such as {_SIZE_EXAMPLES}; got {text!r}")
    return size


def parse_seconds(text: str) -> float:
    """Parse a duration: ``"1h30m"`` → 5400.0; a bare number is seconds, as for timeout(1). Raises UsageError."""
    plain = text.strip().lower()
    if re.fullmatch(_NUMBER, plain):
        seconds = float(plain)
    else:
        parts = _AMOUNT.findall(plain)
        if not _DURATION.fullmatch(plain) or any(unit not in _SECONDS for _, unit in parts):
            message = f"expected a duration, such as 30s, 10m or 1h30m; got {text!r}"
            raise UsageError(message, instead=(text, [_like(text, "10", "m")]))
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        message = f"a duration must be above zero, such as 30s, 10m or 1h30m; got {text!r}"
        raise UsageError(message, instead=(text, ["10m"]))
    return seconds


def _like(text: str, number: str, unit: str) -> str:
    """Return a value that can be read, with the number of a text that cannot, if that has one."""
    return f"{[*re.findall(r'^ *([1-9][0-9]{0,5})', text), number][0]}{unit}"


def format_bytes(size: float) -> str:
    """Format three digits in SI units; whole GiB, or whole MiB below one GiB, as such: ``2 GiB``, ``1.25 GB``."""
    size_bytes = int(size)
    if size_bytes and size_bytes % 2**30 == 0:
        return f"{size_bytes // 2**30} GiB"
    if size_bytes and size_bytes < 2**30 and size_bytes % 2**20 == 0:
        return f"{size_bytes // 2**20} MiB"
    value, units = float(size_bytes), ["B", "KB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{_three_digits(value)} {units[0]}"


def format_seconds(seconds: float) -> str:
    """Format at most two units and cut the rest: ``0.35 s``, ``12.3 s``, ``1 min 30 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    amounts = [(days, "d"), (h, "h"), (m, "min"), (s, "s")]
    while not amounts[0][0]:
        amounts.pop(0)
    return " ".join(f"{amount} {unit}" for amount, unit in amounts[:2] if amount)


def _three_digits(value: float) -> str:
    """Format three significant digits: ``4.00`` → 4, ``1.254`` → 1.25, ``543.2`` → 543."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

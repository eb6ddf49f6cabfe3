"""Condition on a metric: an operator and a number, ``">= 0.985"``. Configuration accepts what receipts judge."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

#: As Python and JSON Schema both read it.
PATTERN = rf"({'|'.join(_OPERATORS)})\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"


def holds(condition: str, value: float) -> bool | None:
    """Whether a value fulfils it; None where it cannot be read."""
    match = re.fullmatch(PATTERN, condition.strip())
    return None if match is None else _OPERATORS[match[1]](value, float(match[2]))

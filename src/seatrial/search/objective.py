"""The objective: which number of a trial is to be large or small, and where it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from seatrial.errors import UsageError

Direction = Literal["max", "min"]


@dataclass(frozen=True)
class Objective:
    """Attributes:
    metric: its name among what the script reports; with a pattern it is only a name.
    pattern: of the output's lines, whose first group is the value; None: from $SEATRIAL_EVENTS.
    """

    metric: str
    direction: Direction
    pattern: str | None = None

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.direction == "max" else one < other

    @property
    def lower_is_better(self) -> bool:
        return self.direction == "min"

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction}"


def parse_objective(text: str, pattern: str | None = None) -> Objective:
    """``NAME:max`` or ``NAME:min``. Raises UsageError."""
    name, _, direction = text.rpartition(":")
    if not name.strip() or direction not in ("max", "min"):
        bare = (name or text).strip(": ") or "accuracy"
        raise UsageError(
            f"--metric {text!r} does not say whether more or less is better",
            run=f"seatrial sweep … --metric {bare}:max   # or {bare}:min",
        )
    if pattern is not None:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(
                f"--metric-from {pattern!r} is no regular expression: {error}", run=_pattern_example(name)
            ) from None
        if groups < 1:
            raise UsageError(
                f"--metric-from {pattern!r} has no group in parentheses that would be the number",
                run=_pattern_example(name),
            )
    return Objective(name.strip(), "max" if direction == "max" else "min", pattern)


def _pattern_example(name: str) -> str:
    return rf"seatrial sweep … --metric {name}:max --metric-from '{name}: ([\d.]+)'"

"""A value of a stranger's file as a sentence shows it: short, on one line, and never an error of its own."""

from __future__ import annotations

import reprlib
from typing import Any


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 200, 200
        self.maxlist = self.maxdict = self.maxtuple = 6

    def repr_int(self, value: int, level: int) -> str:
        """``repr`` refuses integers of more than 4300 digits."""
        return repr(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def shown(value: Any) -> str:
    """``repr``, cut where it is long or deep."""
    return _Short().repr(value)

"""CallableRoom: a package that can be called, so that ``seatrial.runs()`` and ``seatrial.runs.store`` both work.

The Python interface has functions ``runs`` and ``doctor``; rooms have these names, too, and importing one of their
modules puts the room in the function's place (docs/decisions.md, 0046).
"""

import importlib
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """Calls the function of its name in ``seatrial.api``."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As that function."""
        return getattr(importlib.import_module("seatrial.api"), self.__name__.rpartition(".")[2])(*arguments, **named)

"""Text for messages: suggestions for mistyped names, short forms of values, URLs without logins."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, in any case; None where none is."""
    import difflib  # re with it: only where a name was not found

    names = {each.lower(): each for each in known}
    similar = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return names[similar[0]] if similar else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean train?``, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


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


def without_login(url: str) -> str:
    """The URL without ``user:password@``; other text, such as a folder's path, as it is."""
    scheme, found, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{found}{place.rpartition('@')[2]}{slash}{path}" if found else url

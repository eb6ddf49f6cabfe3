"""The name that was meant by a mistyped one, as messages say it."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever its case; None where none is."""
    import difflib  # re with it: only where a name was not found

    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return names[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean train?``, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""

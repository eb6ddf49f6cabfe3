"""The patterns of .dockerignore, and of COPY, as the builder reads them; each path is matched in bounded time.

Source: docs.docker.com/build/concepts/context/#dockerignore-files, and Go's path/filepath.Match. One thing is simpler
here: ``**`` beside other characters, as in ``a**b``, is one ``*``.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath

from seatrial.system.records import dataclass

_ANY = "**"

#: Names of a path that a pattern may have.
_MOST_NAMES = 50


class BadPatternError(ValueError):
    """The builder refuses it; the text says why."""


@dataclass(frozen=True)
class Pattern:
    """One pattern: the names of a path, each with ``*``, ``?`` and ``[…]``, or ``**`` for any number of them."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises BadPatternError."""
        names = re.sub(r"(^|/)\*\*(?=[^/])", r"\1**/*", os.path.normpath(text)).strip("/").split("/")
        if len(names) > _MOST_NAMES:
            raise BadPatternError(f"more than {_MOST_NAMES} folders deep")
        pattern = cls(
            tuple(name for here, name in enumerate(names) if name != _ANY or names[here - 1 : here] != [_ANY])
        )
        _ = pattern._matchers
        return pattern

    def matches(self, path: PurePath) -> bool:
        """It names this path, or a folder above it."""
        return _matches(self._matchers, path.parts)

    @cached_property
    def _matchers(self) -> tuple[re.Pattern[str] | None, ...]:
        """One for each name; None for ``**``. The last makes everything below a match."""
        return (*(None if name == _ANY else re.compile(_as_regex(name)) for name in self.names), None)


def _matches(matchers: Sequence[re.Pattern[str] | None], names: Sequence[str]) -> bool:
    """The one way back is to the last ``**``, which then takes a name more: time is names times matchers at most."""
    at = name = 0
    last: tuple[int, int] | None = None
    while name < len(names):
        if at < len(matchers) and (matcher := matchers[at]) is not None and matcher.match(names[name]):
            at, name = at + 1, name + 1
        elif at < len(matchers) and matchers[at] is None:
            last = at, name
            at += 1
        elif last is not None:
            last = last[0], last[1] + 1
            at, name = last[0] + 1, last[1]
        else:
            return False
    return all(matcher is None for matcher in matchers[at:])


def _as_regex(name: str) -> str:
    """fnmatch's own translation, which never goes back further than to the last ``*``."""
    found, at = "", 0
    while at < len(name):
        character = name[at]
        if character == "\\":
            if at + 1 == len(name):
                raise BadPatternError("the pattern ends in a backslash")
            found, at = found + _literal(name[at + 1]), at + 2
        elif character == "[":
            end = name.find("]", at + 2)
            if end < 0:
                raise BadPatternError("the [ has no ]")
            found, at = found + _class(name[at + 1 : end]), end + 1
        elif character == "*":
            found, at = found.rstrip("*") + "*", at + 1
        else:
            found, at = found + character, at + 1
    return fnmatch.translate(found)


def _literal(character: str) -> str:
    return f"[{character}]" if character in "*?[" else character


def _class(inside: str) -> str:
    for low, high in re.findall(r"(.)-(.)", inside.removeprefix("^")):
        if low > high:
            raise BadPatternError(f"the range {low}-{high} is reversed")
    return f"[!{inside[1:]}]" if inside.startswith("^") else f"[{inside}]"

"""Text for messages: characters made visible, suggestions, short forms, URLs without logins, paths as typed."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, AnyStr, cast

if TYPE_CHECKING:
    from pathlib import Path
import os
import shlex


class _LateRegex:
    def __init__(self, *made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, method := getattr(re.compile(*self._made), name))
        return method


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled on first use: a command uses few of them."""
    return cast("re.Pattern[AnyStr]", _LateRegex(text, flags))


#: Characters that steer a terminal or cannot be seen: controls except tab and line end, separators of lines, lone
#: surrogates, and those that turn the direction of writing or have no width (Unicode's categories Cc, Cf, Cs, Zl, Zp,
#: and the property Default_Ignorable_Code_Point). Variation selectors stay: they choose between a sign and its picture.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return text with each character that steers a terminal, or cannot be seen, as the escape of a JSON string."""
    return _UNSEEN.sub(_escape, text)


def one_line(text: str) -> str:
    """Return a name or a value as part of a line: it cannot begin another one."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_in(value: Any) -> Any:
    """Return JSON data with every text in it visible, keys too."""
    if isinstance(value, dict):
        return {visible_in(key): visible_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_in(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def command_and_comment(fix: str) -> tuple[str, str]:
    """Return a fix's command, and the comment behind it or ""; a receipt has one space between them."""
    command, *comment = re.split(r"\s+# ", fix, maxsplit=1)
    return command, "".join(comment)


def first_of(names: Iterable[object], most: int = 5) -> str:
    """Name the first ones, and count the rest."""
    first, rest = (every := [str(name) for name in names])[:most], len(every) - most
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like this one, in any case; None where none is similar."""
    import difflib  # re with it: only where a name was not found

    names = {each.lower(): each for each in known}
    similar = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return names[similar[0]] if similar else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean train?``, or "" where no known name is similar."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 200, 200
        self.maxlist = self.maxdict = self.maxtuple = 6

    def repr_int(self, value: int, level: int) -> str:
        """Describe an integer of 256 bits or more by its size: ``repr`` refuses more than 4300 digits."""
        return repr(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def shown(value: Any) -> str:
    """Return ``repr``, cut where it is long or deep."""
    return _Short().repr(value)


def without_login(url: str) -> str:
    """Return the URL without ``user:password@``; other text, such as a folder's path, as it is."""
    scheme, found, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{found}{place.rpartition('@')[2]}{slash}{path}" if found else url


def as_typed(path: Path | str) -> str:
    """Quote a path for the shell; relative to the working directory where that is shorter, and never like an option."""
    return shlex.quote(from_here(path))


def from_here(path: Path | str) -> str:
    """Return the path as ``as_typed`` does, for reading: unquoted."""
    text = os.fspath(path)
    try:
        relative = os.path.relpath(text)
    except OSError:  # the working directory is gone
        relative = text
    shown = relative if len(relative) < len(text) or not text.startswith("/") else text
    return f"./{shown}" if shown.startswith("-") else shown

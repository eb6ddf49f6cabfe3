"""Words of the command line that are what they look like, taken without typer's conversion.

typer 0.29 makes a pydantic adapter for each parameter of a command, also for those that nobody has typed: with the
import of pydantic half of what `runs ls` took. Here text stays text, and a number, a path or one of several words is
taken where nothing can be wrong with it. Everything else goes to typer, whose messages are the ones that people get.
Where typer keeps its conversion elsewhere, as before 0.29, nothing is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

#: Of typer's parameter: what converts its value; None until it is first asked.
_CONVERSION = "_runtime_param"

#: Of a path's ParameterInfo: with these values alone any readable path is right.
_ANY_PATH = {
    "exists": False, "file_okay": True, "dir_okay": True, "writable": False, "resolve_path": False, "path_type": None,
}  # fmt: skip


class _NotPlain(Exception):
    """It is typer's to convert, or to refuse."""


class PlainWord:
    """Stands where typer would have its conversion of a parameter."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it."""
        try:
            return plain(value, param)
        except _NotPlain:
            setattr(param, _CONVERSION, None)
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def take_plain(parameters: list[Any]) -> list[Any]:
    """These parameters of typer's, which now convert only what they must."""
    for parameter in parameters:
        if getattr(parameter, _CONVERSION, "") is None and hasattr(parameter, "type_descriptor"):
            setattr(parameter, _CONVERSION, PlainWord())
    return parameters


def plain(value: Any, param: Any) -> Any:
    """Raises _NotPlain."""
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    about, annotation = param.type_descriptor.parameter_info, param.type_descriptor.annotation
    if about.parser is not None:
        raise _NotPlain
    if several:
        if annotation != list[str] or isinstance(value, str) or not all(isinstance(word, str) for word in value):
            raise _NotPlain
        return list(value)
    return _one(value, annotation, about)


def _one(value: Any, annotation: Any, about: Any) -> Any:
    if annotation in (str, bool) and type(value) is annotation:
        return value
    if annotation is int:
        return _within(value, about)
    if annotation is Path and isinstance(value, (str, Path)):
        return _readable(value, about)
    if get_origin(annotation) is Literal and isinstance(value, str) and value in get_args(annotation):
        return value
    raise _NotPlain


def _within(value: Any, about: Any) -> int:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()) or len(value) > 9 or (value[0] == "0" and value != "0"):
            raise _NotPlain
        value = int(value)
    if type(value) is not int or (about.min is not None and value < about.min):
        raise _NotPlain
    if about.max is not None and value > about.max:
        raise _NotPlain
    return value


def _readable(value: str | Path, about: Any) -> Path:
    if any(getattr(about, name) != usual for name, usual in _ANY_PATH.items()):
        raise _NotPlain
    try:
        readable = os.access(value, os.R_OK)
    except ValueError:  # a NUL
        raise _NotPlain from None
    if not readable:
        raise _NotPlain
    return Path(value)

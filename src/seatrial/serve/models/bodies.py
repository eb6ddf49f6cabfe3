"""Where in a JSON body the inputs are, and whether it holds one or several: the same names for every model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.serve.errors import BadInputError, TooMuchError

#: Inputs in one request at most.
MOST_INPUTS = 256
#: Lists within lists are counted no further: numpy has 32 dimensions in its older versions.
_DEEPEST = 33


def inputs_of(body: Any, noun: str, several: Callable[[Any, bool], bool]) -> tuple[list[Any], bool]:
    """The inputs, and whether the client sent a list of them.

    Args:
        body: ``{"input": …}`` or ``{"inputs": …}``, or with the noun (``image``, ``images``) in their place; a bare
            list is as "inputs".
        several: whether a value is a list of inputs, which the model's rank says and not the name; the second argument
            is whether the name is a plural.

    Raises:
        BadInputError: none of the names is there, or two are, or there are no inputs or too many.
    """
    value, plural = _named(body, noun)
    if not several(value, plural):
        return [value], False
    return listed(value, noun), True


def listed(inputs: Any, noun: str) -> list[Any]:
    """A list of inputs. Raises BadInputError."""
    if not isinstance(inputs, list):
        raise BadInputError(f'"inputs" has to be a list of {noun}s.')
    if not inputs:
        raise BadInputError(f"A request holds 1 to {MOST_INPUTS} {noun}s, not none.")
    if len(inputs) > MOST_INPUTS:
        raise TooMuchError(f"{len(inputs)} {noun}s in one request: at most {MOST_INPUTS}.")
    return inputs


def depth(value: Any) -> int:
    """How many lists lie in one another, along the first of each."""
    found = 0
    while isinstance(value, list) and found < _DEEPEST:
        found, value = found + 1, value[0] if value else None
    return found


def _named(body: Any, noun: str) -> tuple[Any, bool]:
    if isinstance(body, list):
        return body, True
    names = {"input": False, noun: False, "inputs": True, f"{noun}s": True}
    given = [name for name in names if isinstance(body, dict) and name in body]
    if not given:
        raise BadInputError(f'The body has to be an object with "input" (one {noun}) or "inputs" (a list of them).')
    if len(given) > 1:
        raise BadInputError(f'The body has "{given[0]}" and "{given[1]}": send one of them.')
    return body[given[0]], names[given[0]]

"""Where in a JSON body the inputs are: the same names for every model."""

from __future__ import annotations

from typing import Any

from seatrial.serve.errors import BadInputError

#: Inputs in one request at most.
MOST_INPUTS = 1024


def inputs_of(body: Any, noun: str) -> list[Any]:
    """Of ``{"input": one}`` or ``{"inputs": [several]}``, or with the noun (``image``, ``images``) in their place.

    Raises BadInputError: neither is there, or there are none or too many.
    """
    for name in ("input", noun):
        if isinstance(body, dict) and name in body:
            return [body[name]]
    for name in ("inputs", f"{noun}s"):
        if isinstance(body, dict) and name in body:
            return several(body[name], noun)
    raise BadInputError(f'The body has to be an object with "input" (one {noun}) or "inputs" (a list of them).')


def several(inputs: Any, noun: str) -> list[Any]:
    """A list of inputs. Raises BadInputError."""
    if not isinstance(inputs, list):
        raise BadInputError(f'"inputs" has to be a list of {noun}s.')
    if not 0 < len(inputs) <= MOST_INPUTS:
        raise BadInputError(f"A request holds 1 to {MOST_INPUTS} {noun}s, not {len(inputs)}.")
    return inputs

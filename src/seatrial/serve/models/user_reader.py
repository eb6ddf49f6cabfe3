"""Requests for a class of the user's: JSON values and files as they came, carried as bytes. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.serve.models.bodies import inputs_of
from seatrial.serve.served_model import Answer, Description, Row

#: First byte of a row: what follows is JSON, or a file.
JSON, FILE = b"j", b"f"


@dataclass
class UserReader:
    """A row is one input in bytes; an answer is JSON in bytes."""

    description: Description

    def rows(self, body: Any) -> list[Row]:
        """Of ``{"input": one}`` or ``{"inputs": [several]}``; any other body is one input itself."""
        return [_row(JSON, json.dumps(each).encode()) for each in self._inputs(body)[0]]

    def many(self, body: Any) -> bool:
        """By the name alone: what an input looks like only the class knows."""
        return self._inputs(body)[1]

    @staticmethod
    def _inputs(body: Any) -> tuple[list[Any], bool]:
        if isinstance(body, dict) and ("input" in body or "inputs" in body):
            return inputs_of(body, "input", lambda _, plural: plural)
        return [body], False

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """The file's bytes."""
        return _row(FILE, data)

    def answer(self, answer: Answer) -> dict[str, Any]:
        """What predict returned; in ``{"output": …}`` where that is no object."""
        found = json.loads(answer[0].tobytes())
        return found if isinstance(found, dict) else {"output": found}


def _row(kind: bytes, data: bytes) -> Row:
    return (np.frombuffer(kind + data, np.uint8),)


def input_of(row: Row) -> Any:
    """The JSON value, or the file's bytes."""
    data = row[0].tobytes()
    return json.loads(data[1:]) if data[:1] == JSON else data[1:]

"""Chips: a state in a word or two, coloured, with a mark so that colour says nothing alone."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """The class of look.css, and the mark before its words."""

    colour: str
    mark: str


#: Of a receipt's outcome.
LEVELS = {
    "good": Chip("pass", "✓ "),
    "bad": Chip("fail", "✗ "),
    "warning": Chip("warning", "! "),
    "none": Chip("none", ""),
}

#: Of what a criterion weighs.
VERDICTS = {
    "pass": Chip("pass", "✓ pass"),
    "fail": Chip("fail", "✗ fail"),
    "warning": Chip("warning", "! warning"),
    "not judged": Chip("none", "not judged"),
}

#: Of a trial, a stage or a service.
STATES = {
    "done": Chip("pass", "✓ "),
    "unchanged": Chip("pass", "= "),
    "failed": Chip("fail", "✗ "),
    "stopped": Chip("warning", "! "),
    "running": Chip("live", "● "),
}
OTHER = Chip("none", "")

"""All edits of one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from seatrial.tuning import model, top
from seatrial.tuning.edits import Edits
from seatrial.tuning.keywords import KEYWORDS, edit_keyword
from seatrial.tuning.libraries import edit_training_arguments
from seatrial.tuning.source import Source


class FilePatch:
    """Collects the edits of a file, and makes them.

    Raises ValueError: it is no Python that can be parsed.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.before = name, data
        try:
            self._edits = Edits(Source(data))
        except (cst.ParserSyntaxError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def edit(
        self, key: str, value: Any, lines: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> str | None:
        """Make the change ``key`` at its lines (by the places' keys). Returns why not."""
        why = self._edit(key, value, lines, places)
        if why is not None and "TrainingArguments" in self._edits.source.module.code:
            return edit_training_arguments(self._edits, key, value)
        return why

    def edit_top(self, key: str) -> str | None:
        if "TrainingArguments(" in self._edits.source.module.code and key == "tf32":
            return edit_training_arguments(self._edits, key, True)
        return top.edit_top(self._edits, key)

    def _edit(
        self, key: str, value: Any, lines: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> str | None:
        edits = self._edits
        if key in ("channels_last", "compile"):
            calls = lines.get("model", ())
            how = "compile_forward" if key == "compile" and "forward" in places.get("compiled", ()) else key
            why = model.edit_behind_move(edits, how, value, lines.get("model_to", ()), calls)
            if why is None and key == "channels_last":
                for line in calls:
                    model.edit_pictures(edits, line, places.get("pictures", ()))
            return why
        reasons = []
        for line in next(iter(lines.values())):
            if key in KEYWORDS:
                why = edit_keyword(edits, key, value, line)
            elif key == "non_blocking":
                why = model.edit_copies(edits, line)
            else:
                why = model.edit_autocast(edits, line, places.get("outputs", ()))
            reasons.append(why and f"{self.name}:{line}: {why}")
        return next((why for why in reasons if why is not None), None)

    def made(self) -> bytes | None:
        """The file with its edits; None where that would not parse."""
        after = self._edits.made()
        try:
            cst.parse_module(after)
        except cst.ParserSyntaxError:
            return None
        return after

"""``up --fix``: a copy of the user's files with the edits of the remarks; the files themselves stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.pipelines.compose.lines import Document
from seatrial.pipelines.compose.remark import Edit, Remark


def fixed_text(document: Document, remarks: Sequence[Remark]) -> tuple[str, list[Remark]]:
    """(the file's text with what can be mended mended, the remarks that this answers).

    Two edits of the same lines: the first counts, and the second's remark stays for the next time.
    """
    lines = document.text.splitlines()
    taken: list[Edit] = []
    answered = []
    for remark in remarks:
        edits = [edit for edit in remark.edits if edit.place.file == document.path]
        if edits and not any(_touch(edit, other) for edit in edits for other in taken):
            taken += edits
            answered.append(remark)
    for edit in sorted(taken, key=lambda each: (each.first, each.last), reverse=True):
        lines[edit.first - 1 : edit.last] = edit.text
    return "\n".join(lines) + "\n", answered


def fixed_path(path: Path) -> Path:
    """``compose.yaml`` → ``compose.fixed.yaml``."""
    return path.with_name(f"{path.stem}.fixed{path.suffix}")


def _touch(one: Edit, other: Edit) -> bool:
    if one.last < one.first or other.last < other.first:  # an insertion beside another, or beside a replaced line
        return one.first == other.first and one.text == other.text
    return one.first <= other.last and other.first <= one.last

"""What a tune tells, and what the hook changed in a script: the target's own word, so each value is checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.receipt.evidence.fields import items, mapping, number, text, whole
from seatrial.receipt.model import ChangesRecord, TriedChange, TuneFiles, TuneRecord

#: Keys of a step event that are the driver's (agent/tune/record.py), and the hook's (agent/hook/changes.py).
TUNE, TUNED = "tune", "tuned"

_MOST_ROWS, _MOST_KEYS = 40, 32
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}")
_WORD = re.compile(r"[a-z0-9-]{1,32}")
_VERDICTS = ("kept", "no-faster", "slower", "different", "failed", "refused", "removed")


def read_tune(events: Iterable[Mapping[str, Any]]) -> TuneRecord | None:
    """The last line of a driver's; each has all of those before it."""
    told = [value for event in events if isinstance(value := event.get(TUNE), dict)]
    if not told:
        return None
    last = told[-1]
    refusal, files = mapping(last.get("refusal")), mapping(last.get("files"))
    return TuneRecord(
        done=last.get("done") is True,
        trials=whole(last.get("trials")) or 0,
        seconds=number(last.get("seconds")) or 0.0,
        baseline=_row(last.get("baseline")),
        rows=tuple(row for value in items(last.get("rows"))[:_MOST_ROWS] if (row := _row(value)) is not None),
        combination=_row(last.get("combination")),
        kept=changes_of(last.get("kept")),
        places=_places(last.get("places")),
        loss_band=number(last.get("band")),
        loss_level=number(last.get("level")),
        not_tried=_texts(last.get("not_tried")),
        refusal=text(refusal.get("words")),
        refusal_fix=text(refusal.get("fix")),
        files=TuneFiles(
            skipped=whole(files.get("skipped")) or 0,
            restored=whole(files.get("restored")) or 0,
            removed=whole(files.get("removed")) or 0,
            new=tuple(word for value in items(files.get("new"))[:20] if (word := text(value))),
            left=tuple(word for value in items(files.get("left"))[:20] if (word := text(value))),
        ),
    )


def read_tuned(events: Iterable[Mapping[str, Any]], asked: Mapping[str, Any]) -> ChangesRecord | None:
    """What became of the changes that a run was to make; None where there were none to make."""
    if not asked:
        return None
    applied: dict[str, Any] = {}
    refused: dict[str, str] = {}
    places: dict[str, tuple[str, ...]] = {}
    for event in events:
        told = mapping(event.get(TUNED))
        applied |= changes_of(told.get("applied"))
        refused |= _texts(told.get("refused"))
        places |= _places(told.get("places"))
    refused = {key: why for key, why in refused.items() if key not in applied}
    return ChangesRecord(asked=dict(asked), applied=applied, refused=refused, places=places)


def _row(value: Any) -> TriedChange | None:
    row = mapping(value)
    if not row:
        return None
    verdict = row.get("verdict")
    return TriedChange(
        name=text(row.get("name")) or "?",
        words=text(row.get("words")) or "",
        changes=changes_of(row.get("changes")),
        steps_per_s=_positive(row.get("steps_per_s")),
        spread=_positive(row.get("spread")),
        trials=whole(row.get("trials")) or 0,
        against=_positive(row.get("against")),
        examples_per_s=_positive(row.get("examples_per_s")),
        peak_bytes=whole(row.get("peak_bytes")),
        loss_difference=number(row.get("loss_difference")),
        verdict=verdict if verdict in _VERDICTS else "",
        why=text(row.get("why")) or "",
        places=_places(row.get("places")),
    )


def changes_of(value: Any) -> dict[str, bool | int | str]:
    """Keys of SEATRIAL_TUNE with values that they can have."""
    found: dict[str, bool | int | str] = {}
    for key, item in list(mapping(value).items())[:_MOST_KEYS]:
        a_number = item is True or (isinstance(item, int) and 0 <= item < 10**9)
        if _KEY.fullmatch(key) and (a_number or (isinstance(item, str) and _WORD.fullmatch(item))):
            found[key] = item
    return found


def _places(value: Any) -> dict[str, tuple[str, ...]]:
    return {
        key: tuple(word for item in items(lines)[:8] if (word := text(item)))
        for key, lines in list(mapping(value).items())[:_MOST_KEYS]
        if _KEY.fullmatch(key)
    }


def _texts(value: Any) -> dict[str, str]:
    return {
        key: word[:300]
        for key, item in list(mapping(value).items())[:_MOST_KEYS]
        if _KEY.fullmatch(key) and (word := text(item))
    }


def _positive(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found >= 0 else None

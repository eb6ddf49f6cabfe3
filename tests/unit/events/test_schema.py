"""The kinds of events: what older versions wrote is still read, and today's writers would write it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seatrial import events
from seatrial.events import KINDS, Step
from seatrial.events.schema import Event

RECORDED = Path(__file__).parents[2] / "recorded" / "events"
LOGS = sorted(RECORDED.glob("*.jsonl"))
ENVELOPE = ("t", "type", "source", "_seq", "node", "_chain")


def lines(path: Path) -> list[dict[str, Any]]:
    read, skipped = events.read(str(path))
    assert skipped == 0
    return read


def made_again(event: dict[str, Any]) -> dict[str, Any]:
    """The event of today's class, as it would be written."""
    kind = KINDS[event["type"]]
    keys = {key: value for key, value in event.items() if key in kind.__annotations__ or key not in ENVELOPE}
    made = events.as_dict(kind(**keys), event["source"], event["t"])
    return json.loads(events.encode({**made, **{key: event[key] for key in ("_seq", "node") if key in event}}))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_recorded_events_are_what_is_written_today(path: Path) -> None:
    for event in lines(path):
        assert made_again(event) == {key: value for key, value in event.items() if key != "_chain"}


def test_every_kind_was_recorded() -> None:
    assert {event["type"] for path in LOGS for event in lines(path)} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_refuses_a_key_that_it_has_not(kind: type[Event]) -> None:
    keys = dict.fromkeys(kind.__annotations__)
    assert vars(kind(**keys)) == keys
    if kind is not Step:
        with pytest.raises(TypeError, match="colour"):
            kind(**keys, colour=1)

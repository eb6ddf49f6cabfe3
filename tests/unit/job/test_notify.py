"""Commands to run at the end: --notify as a table, and the part of it that a plan may show."""

from __future__ import annotations

from seatrial.job.notify import Notify, from_flags
from tables import cases


def test_words_are_commands() -> None:
    assert from_flags(["sh", "tell me"]) == {"command": ["sh", "tell me"]}


@cases("command", "shown")
def test_plan_has_the_program_of_a_command(command: str, shown: str) -> None:
    assert Notify(command=(command,)).hidden.command == (shown,)


def test_stored_plan_of_an_older_version_is_read_without_its_retired_keys() -> None:
    stored = {"desktop": True, "webhook": ["https://a.example/…"], "command": ["beep"]}
    assert Notify.model_validate(stored, strict=False) == Notify(command=("beep",))

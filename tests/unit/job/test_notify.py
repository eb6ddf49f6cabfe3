"""Whom to tell: the words of --notify as a table, and what of it a plan may show."""

from __future__ import annotations

import pytest

from seatrial.errors import UsageError
from seatrial.job.notify import Notify, from_flags


def test_each_word_is_a_desktop_an_address_or_a_command() -> None:
    assert from_flags(["desktop", "https://a.example/x", "http://127.0.0.1:1/", "sh", "tell me"]) == {
        "desktop": True,
        "webhook": ["https://a.example/x", "http://127.0.0.1:1/"],
        "command": ["sh", "tell me"],
    }


@pytest.mark.parametrize(("word", "said"), [("desktopp", "; did you mean desktop?"), ("no-such-program", ""), ("", "")])
def test_a_word_that_is_none_of_them_is_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_flags([word])
    assert refused.value.message.endswith(f"no such command on this machine{said}")
    assert refused.value.run is not None and "--notify desktop" in refused.value.run


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("curl -H 'Authorization: S3CRET' https://x", "curl …"),
        ("TOKEN=S3CRET curl x", "a command"),
        ("beep", "beep"),
        ("echo 'S3CRET", "a command"),
    ],
)
def test_of_a_command_a_plan_has_the_program(command: str, shown: str) -> None:
    assert Notify(command=(command,)).hidden.command == (shown,)


def test_of_an_address_a_plan_has_the_host() -> None:
    hidden = Notify(desktop=True, webhook=("https://me:pw@chat.example.org:1/T0KEN?x", "http://[::1/x")).hidden
    assert hidden.words == "desktop, https://chat.example.org/…, a URL"

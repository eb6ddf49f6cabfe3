"""Notify: whom to tell when a run ends, from ``[notify]`` or ``--notify``."""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Collection
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, StrictBool
from pydantic import WithJsonSchema as Schema

from seatrial.errors import UsageError
from seatrial.job import keys

DESKTOP = "desktop"

Commands = Annotated[
    keys.Listed[keys.Line],
    keys.typed(keys.list_of_one),
    Schema({"anyOf": [keys.text("./tell-me.sh"), {"type": "array", "items": keys.TEXT}]}),
]
Webhooks = Annotated[
    keys.Listed[keys.Webhook],
    keys.typed(keys.list_of_one),
    Schema({"anyOf": [keys.text("https://chat.example.org/hook"), {"type": "array", "items": keys.TEXT}]}),
]


class Notify(keys.Table):
    """Who is told that a run has ended. A plan has the shape of it alone: commands and addresses may be secrets."""

    desktop: StrictBool = Field(default=False, description="A notification on this machine's desktop.")
    command: Commands = Field(default=(), description="Shell commands run on this machine, in the project.")
    webhook: Webhooks = Field(default=(), description="URLs that the end is posted to, as JSON.")

    @property
    def asked(self) -> bool:
        return self.desktop or bool(self.command or self.webhook)

    @property
    def hidden(self) -> Notify:
        """The same for a plan: of a command its program, of an address its host."""
        return Notify(
            desktop=self.desktop,
            command=tuple(program_of(command) for command in self.command),
            webhook=tuple(host_of(url) for url in self.webhook),
        )

    @property
    def words(self) -> str:
        """``desktop, https://chat.example.org/…``."""
        return ", ".join([*([DESKTOP] if self.desktop else []), *self.command, *self.webhook])


def from_flags(words: Collection[str]) -> dict[str, Any]:
    """``--notify`` as a table of the file: ``desktop``, a URL, or else a command.

    Raises UsageError: one word that is none of the three, such as a misspelt ``desktop``.
    """
    table: dict[str, Any] = {"command": [], "webhook": []}
    for word in words:
        if not isinstance(word, str):  # from Python
            raise UsageError(f"notify: {word!r} is no text", run=f'notify=["{DESKTOP}"]   # or a URL, or a command')
        if word == DESKTOP:
            table["desktop"] = True
        elif word.startswith(("http://", "https://")):
            table["webhook"].append(word)
        else:
            _refuse_no_command(word)
            table["command"].append(word)
    return {key: value for key, value in table.items() if value}


def _refuse_no_command(word: str) -> None:
    if word.strip() and (len(word.split()) > 1 or shutil.which(word)):
        return
    near = difflib.get_close_matches(word, [DESKTOP], n=1)
    raise UsageError(
        f"--notify {word!r} is neither {DESKTOP} nor a URL, and there is no such command on this machine"
        + (f"; did you mean {DESKTOP}?" if near else ""),
        run=f"seatrial run … --notify {DESKTOP}   # or a URL, or a command in quotes",
    )


def program_of(command: str) -> str:
    """``curl …``: arguments and variables in front may be secrets."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is not closed: the shell will say so
        words = []
    if not words or "=" in words[0]:
        return "a command"
    return words[0] + (" …" if words[1:] else "")


def host_of(url: str) -> str:
    """``https://chat.example.org/…``: whoever has the rest may post there."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}/…"
    except ValueError:  # a bracket that no IPv6 address closes
        return "a URL"

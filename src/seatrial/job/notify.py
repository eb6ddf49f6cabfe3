"""Notify: the commands to run when a run has ended, from ``[notify]`` or ``--notify``."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, model_validator
from pydantic import WithJsonSchema as Schema

from seatrial.errors import UsageError
from seatrial.job import keys
from seatrial.job.retired import KEYS

Commands = Annotated[
    keys.Listed[keys.Line],
    keys.typed(keys.list_of_one),
    Schema({"anyOf": [keys.text("./notify.sh"), {"type": "array", "items": keys.TEXT}]}),
]


class Notify(keys.KeyTable):
    """The commands to run at the end. A plan has their programs alone: arguments may be secrets."""

    command: Commands = Field(default=(), description="Shell commands run on this machine, in the project.")

    @property
    def requested(self) -> bool:
        return bool(self.command)

    @property
    def hidden(self) -> Notify:
        """The same for a plan: the program of each command."""
        return Notify(command=tuple(program_of(command) for command in self.command))

    @property
    def words(self) -> str:
        return ", ".join(self.command)

    @model_validator(mode="before")
    @classmethod
    def _stored_by_an_older_version(cls, table: Any, info: ValidationInfo) -> Any:
        """Drop the retired keys of a stored plan; in seatrial.toml they are refused."""
        if info.context is None and isinstance(table, dict):
            return {key: value for key, value in table.items() if key not in ("desktop", "webhook")}
        return table


def from_flags(words: Collection[str]) -> dict[str, Any]:
    """Return ``--notify`` as a table of the file. Raises UsageError for a word that is not a command."""
    for word in words:
        if not isinstance(word, str):  # from Python
            raise UsageError(f"notify: {word!r} is not text", run='notify=["notify-send done"]')
        retired = "desktop" if word == "desktop" else "webhook" if word.startswith(("http://", "https://")) else ""
        if retired:
            raise UsageError(
                f"--notify {host_of(word) if retired == 'webhook' else word} was removed: {KEYS[f'notify.{retired}']}"
            )
        if not word.strip() or (len(word.split()) == 1 and not shutil.which(word)):
            raise UsageError(
                f"--notify {word!r}: command not found on this machine",
                run="seatrial run … --notify 'notify-send done'",
            )
    return {"command": list(words)} if words else {}


def program_of(command: str) -> str:
    """Return ``curl …``: arguments and variables in front may be secrets."""
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote, which the shell will report
        words = []
    if not words or "=" in words[0]:
        return "a command"
    return words[0] + (" …" if words[1:] else "")


def host_of(url: str) -> str:
    """Return ``https://chat.example.org/…``: the rest allows anyone to post there."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}/…"
    except ValueError:  # a bracket that no IPv6 address closes
        return "a URL"

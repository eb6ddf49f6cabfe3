"""Commands, options and keys of seatrial.toml that were removed, and the sentence that names each one's replacement.

An entry stays for one release. The command line shows it in place of "no such command" and "no such option", and the
reader of seatrial.toml in place of "unknown key". To retire something, delete it and add a line to
retired.json.
"""

from __future__ import annotations

import json
import pkgutil

_TABLES: dict[str, dict[str, str]] = json.loads(pkgutil.get_data("seatrial.job", "retired.json") or b"{}")

#: Command, or command and subcommand → the command that replaces it; command and option → the sentence that names the
#: replacement; key of seatrial.toml, ``table.key`` or a whole table → likewise. Keys of a stage or a service are
#: written with ``*`` for its name: ``stages.*.serve``.
COMMANDS, OPTIONS, KEYS = _TABLES["commands"], _TABLES["options"], _TABLES["keys"]


def replaced_command(words: list[str]) -> str | None:
    """Return the command that replaces these first words of a command line; None if nothing was retired there."""
    return COMMANDS.get(" ".join(words[:2])) or (COMMANDS.get(words[0]) if words else None)


def replaced_option(command: str, option: str) -> str | None:
    """Return the sentence for an option of a command, e.g. ``sweep`` and ``--fused``; None if it never existed."""
    return OPTIONS.get(f"{command} {option.partition('=')[0]}")


def replaced_key(key: str) -> str | None:
    """Return the sentence for a key such as ``notify.desktop``, or for the table around it; None if there is none."""
    parts = key.split(".")
    starred = [parts[0], "*", *parts[2:]] if len(parts) > 1 else parts
    for form in (parts, starred):
        for end in range(len(form), 0, -1):
            if found := KEYS.get(".".join(form[:end])):
                return found
    return None

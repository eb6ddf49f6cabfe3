"""The options that describe a Job, each once, for the command line, its help, completion, messages and backends.

A new option is a row of flags.json, a field of the Job (model.py), and the place that acts on it. To retire a command,
an option or a key, delete it and add a line to retired.json, which stays for one release: the sentence that names the
replacement is shown in place of "no such command", "no such option" and "unknown key".
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """An option of every command that takes a job.

    Attributes:
        key: where its value belongs in seatrial.toml; OWN are not keys of the file.
        names: as typed, the long one first.
        kind: str, list[str], bool or Path; parsed by job.loading, as the file is.
        group: the heading in the help.
        needs: the group of options that a backend must honour for it (backends.base.Traits).
        without: commands, apart by a space, that lack it because it could change nothing there.
    """

    key: str
    names: str
    help: str
    kind: Any = str
    metavar: str | None = None
    group: str = ""
    needs: str | None = None
    without: str = ""

    @property
    def name(self) -> str:
        """Return the flag's first name, for messages: ``--memory``, ``-m``."""
        return self.names.split()[0]

    @property
    def parameter(self) -> str:
        """Return the name of the parameter of the command's function."""
        return self.key.replace(".", "_")


_KINDS: dict[str, Any] = {"str": str, "bool": bool, "path": Path, "list": list[str]}


def read_table(name: str) -> dict[str, Any]:
    """Read a table of this folder."""
    table: dict[str, Any] = json.loads(pkgutil.get_data("seatrial.job", name) or b"{}")
    return table


#: Heading of the help → its options; "" for those listed with the command's own.
_OPTIONS = read_table("flags.json")

FLAGS = tuple(
    Flag(**{**row, "kind": _KINDS[row.get("kind", "str")], "group": group})
    for group, rows in _OPTIONS.items()
    for row in rows
)
GROUPS = tuple(group for group in _OPTIONS if group)

#: Options that are not keys of the file.
OWN = ("no_criteria", "trust", "project", "file")


def in_tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``{"image.ready": "x"}`` into ``{"image": {"ready": "x"}}``, without options that were not typed."""
    flags: dict[str, Any] = {}
    for key, value in given.items():
        if value not in (None, False, ()):
            table, dot, last = key.rpartition(".")
            (flags.setdefault(table, {}) if dot else flags)[last] = value
    return flags


#: Command, or command and subcommand → the command that replaces it; command and option → the sentence that names the
#: replacement; key of seatrial.toml or a table → likewise; option of other tools → (what stands for it, the command).
_RETIRED: dict[str, dict[str, Any]] = read_table("retired.json")
COMMANDS, OPTIONS, KEYS, ELSEWHERE = (_RETIRED[kind] for kind in ("commands", "options", "keys", "elsewhere"))

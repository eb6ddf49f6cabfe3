"""Owner: the searcher that a running trial belongs to, and whether it is still there.

On its own machine a PID and its start time say exactly that. Of another machine's processes nothing can be asked, so
each searcher writes into the study that it is there.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from seatrial.runs.launching_process import LaunchingProcess

#: How often a searcher writes that it is there.
SEEN_S = 30.0

#: A searcher of another machine that has written nothing for so long is taken for gone: ten beats, so that a machine
#: that swaps or a slow shared disk does not lose its trials. Clocks of machines that share a disk agree within seconds.
SILENT_S = 300.0

#: Made when it is first needed: studies of before know nothing of other machines.
_TABLE = "create table if not exists searchers (owner text primary key, seen_at real not null)"


class Owner(BaseModel):
    """A searcher.

    Attributes:
        host: the machine; empty in studies of before, which knew of one only.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    process: LaunchingProcess
    host: str = ""

    @classmethod
    def this_process(cls) -> Owner:
        return cls(process=LaunchingProcess.this_process(), host=this_host())

    @classmethod
    def parse(cls, text: str) -> Owner:
        """As it stands in the study; before there were hosts, the process alone stood there."""
        if '"process"' in text:
            return cls.model_validate_json(text)
        return cls(process=LaunchingProcess.model_validate_json(text))

    @property
    def is_here(self) -> bool:
        """It runs, or ran, on this machine."""
        return self.host in ("", this_host())


def write_seen(file: sqlite3.Connection) -> None:
    """This process is there."""
    file.execute(_TABLE)
    row = [Owner.this_process().model_dump_json(), time.time()]
    file.execute("insert or replace into searchers values (?, ?)", row)


def write_gone(file: sqlite3.Connection) -> None:
    """This process works on the study no more."""
    file.execute(_TABLE)
    file.execute("delete from searchers where owner = ?", [Owner.this_process().model_dump_json()])


def is_anyone_there(file: sqlite3.Connection) -> bool:
    """Whether a searcher works on the study. Changes nothing."""
    if file.execute("select 1 from sqlite_master where name = 'searchers'").fetchone() is None:
        return False
    return any(not has_gone(file, owner) for (owner,) in file.execute("select owner from searchers").fetchall())


def has_gone(file: sqlite3.Connection, owner: str | None) -> bool:
    """Whether nobody follows this owner's trials any more."""
    if owner is None:
        return True
    one = Owner.parse(owner)
    if one.is_here:
        return not one.process.is_alive()
    file.execute(_TABLE)
    row = file.execute("select seen_at from searchers where owner = ?", [owner]).fetchone()
    return row is None or time.time() - row[0] > SILENT_S


@cache
def this_host() -> str:
    """This machine's name and, where it has one, its ID: two machines may have the same name, or clones the same ID."""
    try:
        machine_id = Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine_id = ""
    return f"{socket.gethostname()}/{machine_id}"

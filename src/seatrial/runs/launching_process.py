"""Who is starting a run: until there is a handle, the launching CLI's own process stands for it."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict

from seatrial.probe import processes


class LaunchingProcess(BaseModel):
    """A process of this machine, by PID and start time, so that a reused PID is not mistaken for it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: int
    started_ticks: int

    @classmethod
    def this_process(cls) -> LaunchingProcess:
        me = processes.read(os.getpid())
        assert me is not None
        return cls(pid=me.pid, started_ticks=me.started_ticks)

    @classmethod
    def of(cls, pid: int) -> LaunchingProcess | None:
        """Another process; None where it has gone."""
        there = processes.read(pid)
        return None if there is None else cls(pid=there.pid, started_ticks=there.started_ticks)

    def is_alive(self) -> bool:
        now = processes.read(self.pid)
        return now is not None and now.started_ticks == self.started_ticks and now.state != "Z"

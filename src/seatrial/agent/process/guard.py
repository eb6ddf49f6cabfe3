"""The guard: a forked child that outlives a killed agent just long enough to kill what the agent had started.

PR_SET_PDEATHSIG reaches the target alone, not the ranks and workers under it. In a container the death of PID 1 takes
everything along; a local process has nobody but the guard.
"""

import os
import signal
import time
from typing import List

from seatrial.agent.process.environment import RUN_VARIABLE
from seatrial.probe import proc

#: Processes that fork while being killed need another round; more than this many means that one cannot be killed.
_ROUNDS = 50


def start(run_id: str) -> int:
    """Fork the guard and return its PID. Call before any thread exists.

    It waits on a pipe whose other end only the agent holds; the end of file is the agent's death.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(read_end)
        os.set_inheritable(write_end, False)
        return child
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, read_end)  # the engine's pipes, and our copy of the write end, must not stay open
        os.closerange(read_end + 1, 256)
        os.read(read_end, 1)
        kill_run(run_id)
    finally:
        os._exit(0)


def kill_run(run_id: str) -> None:
    """SIGKILL every process that carries the run's mark in its environment, until none is left."""
    for _ in range(_ROUNDS):
        marked = find_run(run_id)
        if not marked:
            return
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def find_run(run_id: str) -> List[int]:
    """PIDs of live processes with this run's mark, this process excepted."""
    mark = ("%s=%s" % (RUN_VARIABLE, run_id)).encode()
    alive = [process.pid for process in proc.everyone().values() if process.state != "Z"]
    return [pid for pid in alive if pid != os.getpid() and mark in proc.environment(pid)]

"""The target process: its own session, and gone when the agent is."""

import ctypes
import os
import signal
import subprocess
from typing import Dict, List

from seatrial.agent.process.standard import Standard

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2)


def become_subreaper() -> None:
    """Orphans of the target become our children instead of init's. PID 1 has them anyway."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Target:
    """A started target.

    Attributes:
        pid: also its process group and session, unless interactive.
    """

    def __init__(
        self, argv: List[str], env: Dict[str, str], workdir: str, streams: Standard, interactive: bool
    ) -> None:
        """Raises OSError when it cannot be started. Call before any thread exists: it forks."""
        libc, agent = _libc(), os.getpid()

        def die_with_agent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:  # it died before the line above
                os._exit(1)
            if streams.controlled:
                _take_terminal()

        # A terminal belongs to one session, so an interactive target stays in ours.
        self._process = subprocess.Popen(
            argv,
            env=env,
            cwd=workdir,
            stdin=streams.theirs[0],
            stdout=streams.theirs[1],
            stderr=streams.theirs[2],
            bufsize=0,
            start_new_session=not interactive,
            preexec_fn=die_with_agent,
        )
        self.pid = self._process.pid

    def ended(self, status: int) -> None:
        """Tell Popen that it has been reaped, so that it never waits for a PID that others may have by then."""
        self._process.returncode = status


def _take_terminal() -> None:
    """Make stdin the terminal that controls this session: Ctrl-C typed there, /dev/tty, job control."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

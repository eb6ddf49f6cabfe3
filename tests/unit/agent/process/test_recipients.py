"""Who gets a signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from seatrial.agent.signals import recipients

#: Starts a program of its own, as torchrun starts a rank.
LAUNCHER = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()  # rank']); print(flush=True); input()"
)


@pytest.mark.parametrize(
    ("number", "launcher", "with_ranks"),
    [
        (signal.SIGINT, "none", True),
        (signal.SIGTERM, "none", True),
        (signal.SIGINT, "torchrun", False),
        (signal.SIGTERM, "torchrun", True),
    ],
)
def test_torchrun_alone_gets_sigint(number: signal.Signals, launcher: str, *, with_ranks: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = recipients(number, process.pid, launcher)
        assert process.pid in found and (len(found) > 1) is with_ranks
        process.communicate(b"\n\n")

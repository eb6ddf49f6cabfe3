"""The host's witness: whose work it counts on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from seatrial.probe.nvml import ComputeProcess
from seatrial.runs.watch import Witness

#: Of no process: above the kernel's largest PID.
HIDDEN = 2**22 + 1


@pytest.fixture
def neighbour():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


@pytest.mark.parametrize(
    ("own_share", "other_share", "working", "foreign"),
    [(0.0, 99.0, 0, 1), (40.0, 0.0, 1, 0), (40.0, 30.0, 1, 1), (None, None, 0, 1)],
)
def test_each_process_has_its_own_work(neighbour, own_share, other_share, working, foreign):
    listed = [ComputeProcess(os.getpid(), 1, own_share), ComputeProcess(neighbour, 1, other_share)]
    witness = Witness(("GPU-1",), lambda: {os.getpid()}, lambda uuid: listed)
    witness.look("GPU-1")
    seen = witness.seen["GPU-1"]
    assert (seen["looks"], seen["ours"], seen["others"]) == (1, 1, 0)
    assert (seen["working"], seen["foreign"]) == (working, foreign)
    assert all(f"(PID {neighbour})" in name for name in seen["names"]) and len(seen["names"]) == foreign


def test_process_of_another_pid_namespace_may_be_the_runs_or_not():
    witness = Witness(("GPU-1",), lambda: {os.getpid()}, lambda uuid: [ComputeProcess(HIDDEN, 1, 50.0)])
    witness.look("GPU-1")  # this process has no CUDA context, so the hidden one is another's
    assert witness.seen["GPU-1"]["foreign"] == 1 and "does not show" in witness.seen["GPU-1"]["names"][0]

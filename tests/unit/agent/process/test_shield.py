"""Shut off from others of the same user; and what is said where that is not enough."""

import os
import subprocess
import sys

import pytest

from seatrial.agent import isolation

STATUS = {"CapBnd": "00000000000000cb", "CapEff": "0000000000000000", "NoNewPrivs": "1"}

#: Root, who has every capability, becomes somebody else first; which makes a process undumpable by itself.
ORDINARY = """
import ctypes, os, sys
def ordinary():
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(1001); os.setuid(1001)
        assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
"""

AGENT = """
from seatrial.agent import isolation
ordinary()
if "open" not in sys.argv: isolation.close()
print("ready", flush=True)
sys.stdin.read()
"""

#: Tries every door of a process in /proc, and writes the names of those that open.
INTRUDER = """
ordinary()
pid, opened = int(sys.argv[1]), []
doors = {
    "mem": lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR),
    "environ": lambda: open(f"/proc/{pid}/environ", "rb").read(1),
    "fd": lambda: os.listdir(f"/proc/{pid}/fd"),
    "stdout": lambda: os.open(f"/proc/{pid}/fd/1", os.O_WRONLY),
    "cwd": lambda: os.readlink(f"/proc/{pid}/cwd"),
    "exe": lambda: os.readlink(f"/proc/{pid}/exe"),
    "maps": lambda: open(f"/proc/{pid}/maps", "rb").read(1),
}
for name, door in doors.items():
    try:
        door()
        opened.append(name)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, pid, 0, 0) == 0: opened.append("ptrace")  # PTRACE_ATTACH
pidfd = libc.syscall(434, pid, 0)  # pidfd_open
if pidfd >= 0 and libc.syscall(438, pidfd, 1, 0) >= 0: opened.append("pidfd_getfd")
print(" ".join(opened))
"""


def intrude(*words):
    """Doors that open to a process of the same user as the agent."""
    agent = subprocess.Popen(
        [sys.executable, "-c", ORDINARY + AGENT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert agent.stdout.readline() == b"ready\n"
        intruder = [sys.executable, "-c", ORDINARY + INTRUDER, str(agent.pid)]
        return subprocess.run(intruder, capture_output=True, text=True, check=True).stdout.split()
    finally:
        agent.stdin.close()
        agent.stdout.close()
        agent.kill()
        agent.wait()


def test_nobody_of_its_user_comes_in():
    assert intrude() == []


def test_without_it_they_do():
    assert {"mem", "environ", "fd", "ptrace"} <= set(intrude("open"))


@pytest.fixture
def undumpable(monkeypatch):
    """The kernel as after close(), without this process being changed."""
    requested = []

    class Libc:
        def __init__(self, *_, **__):
            pass

        def prctl(self, option, *_):
            requested.append(option)
            return 0

    monkeypatch.setattr(isolation.ctypes, "CDLL", Libc)
    monkeypatch.setattr(isolation, "_own_code_is_writable", lambda: False)
    return requested


def reported(monkeypatch, uid=1000, **status):
    monkeypatch.setattr(isolation, "_status", lambda: {**STATUS, **status})
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    return isolation.close()


@pytest.mark.parametrize(
    ("uid", "status", "printed"),
    [
        (1000, {}, None),
        (1000, {"CapBnd": "000001ffffffffff"}, None),  # not to be had: no setuid program gives any
        (1000, {"CapBnd": "000001ffffffffff", "NoNewPrivs": "0"}, "SYS_PTRACE"),
        (0, {}, None),  # CHOWN, DAC_OVERRIDE, FOWNER: what a root of ours has
        (0, {"CapBnd": "0000000000080000"}, "SYS_PTRACE"),
        (0, {"CapBnd": "0000000000000004"}, "DAC_READ_SEARCH"),
        (0, {"CapBnd": "000001ffffffffff"}, "SYS_ADMIN"),
        (1000, {"CapEff": "0000000000200000"}, "SYS_ADMIN"),
        (1000, {"CapEff": "what"}, "cannot be read"),
    ],
)
def test_capabilities_that_reach_the_agent_are_named(monkeypatch, undumpable, uid, status, printed):
    why = reported(monkeypatch, uid, **status)
    assert why is None if printed is None else printed in why
    assert undumpable == [4, 3]  # set, and requested whether it holds


def test_no_status_is_no_proof(monkeypatch, undumpable):
    monkeypatch.setattr(isolation, "_status", dict)
    assert "cannot be read" in isolation.close()


def test_a_kernel_that_refuses_is_reported(monkeypatch):
    class Libc:
        def __init__(self, *_, **__):
            pass

        def prctl(self, option, *_):
            return 0 if option == 4 else 1  # it reports yes, and stays dumpable

    monkeypatch.setattr(isolation.ctypes, "CDLL", Libc)
    assert "does not protect" in isolation.close()


def test_an_agent_whose_python_the_target_can_write_is_reported(tmp_path, monkeypatch, undumpable):
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", [str(tmp_path)])
    assert isolation._own_code_is_writable()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not isolation._own_code_is_writable()

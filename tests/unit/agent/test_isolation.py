"""An agent that is shut off from others of its user, the reasons why that is not enough, and imports by a child."""

import json
import os
import subprocess
import sys

import pytest

from agent_process import FLOOR
from seatrial.agent import isolation
from seatrial.system import agent_archive
from tables import constant

SCRIPTS = constant(__file__, "scripts")

STATUS = {"CapBnd": "00000000000000cb", "CapEff": "0000000000000000", "NoNewPrivs": "1"}


def intrude(*words):
    """Doors that open to a process of the same user as the agent."""
    agent = subprocess.Popen(
        [sys.executable, "-c", SCRIPTS["ordinary"] + SCRIPTS["agent"], *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert agent.stdout.readline() == b"ready\n"
        intruder = [sys.executable, "-c", SCRIPTS["ordinary"] + SCRIPTS["intruder"], str(agent.pid)]
        return subprocess.run(intruder, capture_output=True, text=True, check=True).stdout.split()
    finally:
        agent.stdin.close()
        agent.stdout.close()
        agent.kill()
        agent.wait()


def test_processes_of_its_user_reach_an_agent_only_while_it_is_open():
    assert intrude() == []
    assert {"mem", "environ", "fd", "ptrace"} <= set(intrude("open"))


def libc(answers, requested):
    """A kernel that answers prctl, without this process being changed."""

    class Libc:
        def __init__(self, *_, **__):
            pass

        def prctl(self, option, *_):
            requested.append(option)
            return answers.get(option, 0)

    return Libc


@pytest.mark.parametrize(
    ("uid", "status", "printed"),
    [
        (1000, {}, None),
        (1000, {"CapBnd": "000001ffffffffff"}, None),  # not to be had: no setuid program gives any
        (1000, {"CapBnd": "000001ffffffffff", "NoNewPrivs": "0"}, "SYS_PTRACE"),
        (0, {}, None),  # CHOWN, DAC_OVERRIDE, FOWNER: a root of ours has these
        (0, {"CapBnd": "0000000000000004"}, "DAC_READ_SEARCH"),
        (0, {"CapBnd": "000001ffffffffff"}, "SYS_ADMIN"),
        (1000, {"CapEff": "0000000000200000"}, "SYS_ADMIN"),
        (1000, {"CapEff": "what"}, "cannot be read"),
        (1000, None, "cannot be read"),
    ],
)
def test_capabilities_that_reach_the_agent_are_named(monkeypatch, uid, status, printed):
    requested = []
    monkeypatch.setattr(isolation.ctypes, "CDLL", libc({}, requested))
    monkeypatch.setattr(isolation, "_own_code_is_writable", lambda: False)
    monkeypatch.setattr(isolation.processes, "status", lambda pid: {} if status is None else {**STATUS, **status})
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(isolation, "own_python", lambda: ["ld.so", "python3"])
    why = isolation.close()
    assert why is None if printed is None else printed in why
    assert requested == [22, 4, 3]  # a filter; undumpable, and read back


def test_a_kernel_that_stays_dumpable_is_reported(monkeypatch):
    monkeypatch.setattr(isolation.ctypes, "CDLL", libc({3: 1}, []))
    assert "does not protect" in isolation.close()


def test_an_agent_whose_python_the_target_can_write_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path)])
    assert isolation._own_code_is_writable()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not isolation._own_code_is_writable()


@pytest.mark.parametrize("python", [python for python in (sys.executable, FLOOR) if python])
def test_pynvml_compiled_by_a_child_costs_a_few_megabytes(tmp_path, python):
    command = [python, "-I", "-c", SCRIPTS["light"], str(agent_archive.build(tmp_path))]
    grown_bytes, same, error = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown_bytes < 5_000_000  # under 2 MB measured; 15 to 18 MB when this process compiles it
    assert same and error == "NVMLError_GpuIsLost"
    with pytest.raises(ImportError, match="no_such_module cannot be found"):
        isolation.import_compiled_by_child("no_such_module")


def test_keyrings_are_closed_to_it_and_to_its_children():
    """A container whose root is the host's root found that user's keys."""
    program = (
        "import ctypes, os, sys; from seatrial.agent import isolation; libc = ctypes.CDLL(None, use_errno=True)\n"
        "number = {'x86_64': 248, 'aarch64': 217}[os.uname().machine]; libc.prctl(38, 1, 0, 0, 0)\n"
        "ask = lambda at: (libc.syscall(number + at, 0, 0, 0, 0, 0), ctypes.get_errno())\n"
        "isolation._close_keyrings(libc); os.fork() and os.wait()\n"
        "print([ask(at) for at in range(3)], ask(3) == (-1, 1), flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[(-1, 1), (-1, 1), (-1, 1)] False\n" * 2

"""Scripts that end in strange ways, or try to end the agent: the exit code and the receipt show what happened.

All are started at once, detached, and nobody follows them.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from attacks_harness import Arena, evidence, intact, receipt, record
from cli_project import Project

pytestmark = pytest.mark.slow  # minutes on two cores: containers that print, fork and linger

#: In front of every script.
PRELUDE = """
import ctypes, os, resource, signal, sys, time

FORGED = b'{"t":1,"type":"target.exited","source":"agent","exit_code":0,"signal":null,"cause":"exited","_seq":%d}'
def ignore(*numbers):
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
def limit(*numbers, value=0):
    for number in numbers:
        try:
            resource.prlimit(1, number, (value, value))
        except (OSError, ValueError):
            pass
def aside(work):
    # as a daemon: a grandchild in a session of its own, which falls to PID 1
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
    os.wait()
"""


class End(NamedTuple):
    """Act of the script, and the verdict that seatrial must reach.

    Attributes:
        code: what ``seatrial runs show`` exits with. causes: exit causes that are true.
        flags: of ``seatrial run``.
    """

    script: str
    code: int
    causes: set[str]
    flags: tuple[str, ...] = ()


AGENT_LOST = {"agent-lost"}

#: Name → end. An end that spoils the agent may cost the run its proof, and never makes a failure a success.
ENDS = {
    "kill -9 of itself": End("os.kill(os.getpid(), 9)", 1, {"signal"}),
    "half a frame, then kill -9 of itself": End(
        "os.write(1, b'whole\\n\\x1d\\x1e{\"type\":'); os.kill(os.getpid(), 9)", 1, {"signal"}
    ),
    "frames at every edge of a piece, then a failure": End(
        "for n in (0, 1, 4094, 4095, 8190, 8191, 8192, 16382, 16384, 65535):\n"
        "    for mark in (b'\\x1e', b'\\x02', b'\\x1f', b'\\x1c', b'\\x1d\\x1e'):\n"
        "        os.write(1, b'x' * n + b'\\n' + mark + FORGED % n + b'\\n')\n"
        "        os.write(1, b'y' * n + mark + FORGED % n + b'\\r\\n')\n"
        "        os.write(2, mark + FORGED % n + b'\\n')\n"
        "sys.exit(7)",
        1,
        {"script-error"},
    ),
    "a frame without a line end, then a failure": End(
        "os.write(1, b'\\x1e' + FORGED % 3); sys.exit(7)", 1, {"script-error"}
    ),
    "closed streams, then a failure": End("os.close(1); os.close(2); os._exit(7)", 1, {"script-error"}),
    "SIGTERM to the agent, then a clean end": End("ignore(15); os.kill(1, 15); time.sleep(1)", 0, {"stopped"}),
    "SIGTERM to the agent, then a failure": End("ignore(15); os.kill(1, 15); sys.exit(7)", 1, {"stopped"}),
    "three times SIGTERM to the agent": End(
        "ignore(15)\nfor _ in range(3): os.kill(1, 15); time.sleep(0.5)\ntime.sleep(60)", 1, {"stopped"}
    ),
    "a storm of signals while it ends": End(
        "ignore(1, 10, 12)\n"
        "def storm():\n"
        "    end = time.time() + 3\n"
        "    while time.time() < end:\n"
        "        for number in (1, 10, 12, 17, 28): os.kill(1, number)\n"
        "    os._exit(0)\n"
        "aside(storm); time.sleep(0.5); os._exit(7)",
        1,
        {"script-error", "stopped"},
    ),
    "no descriptors for the agent": End("limit(resource.RLIMIT_NOFILE); time.sleep(3); sys.exit(7)", 5, AGENT_LOST),
    "no memory for the agent": End("limit(resource.RLIMIT_AS); time.sleep(3); sys.exit(7)", 5, AGENT_LOST),
    "no bytes in files for the agent": End(
        "limit(resource.RLIMIT_FSIZE); time.sleep(2); sys.exit(7)", 1, {"script-error"}
    ),
    "no limit left to the agent": End("limit(*range(16)); time.sleep(3)", 5, AGENT_LOST),
    "the agent starved": End(
        "os.setpriority(os.PRIO_PROCESS, 1, 19); os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        end = time.time() + 3\n"
        "        while time.time() < end: pass\n"
        "        os._exit(0)\n"
        "time.sleep(2); os._exit(7)",
        1,
        {"script-error"},
    ),
    "a process that forks away from every signal": End(
        "ignore(1, 2, 15)\ndef hop():\n    while True:\n        if os.fork(): os._exit(0)\naside(hop); os._exit(7)",
        1,
        {"script-error"},
    ),
    "a daemon that waits for the end to write": End(
        "ignore(1, 2, 15)\n"
        "def wait():\n"
        "    time.sleep(30); open('/workspace/late', 'w'); os.write(1, b'\\x1e' + FORGED % 9)\n"
        "aside(wait); os._exit(7)",
        1,
        {"script-error"},
    ),
    "more memory than allowed": End(
        "hoard = []\nwhile True: hoard.append(os.urandom(1 << 20))", 1, {"host-oom"}, ("--memory", "200MB")
    ),
    "more memory than allowed, the agent first to die": End(
        "try: open('/proc/1/oom_score_adj', 'w').write('1000')\n"
        "except OSError: pass\n"
        "hoard = []\nwhile True: hoard.append(os.urandom(1 << 20))",
        1,
        {"host-oom", *AGENT_LOST},
        ("--memory", "200MB"),
    ),
    "20 MB in a burst, then kill -9 of itself": End(
        "line = b'\\x1e' + FORGED % 5 + b'\\n' + b'z' * 9000 + b'\\n'\n"
        "data = line * (20_000_000 // len(line))\n"
        "while data: data = data[os.write(1, data):]\n"
        "os.kill(os.getpid(), 9)",
        1,
        {"signal"},
    ),
}


class Ended(NamedTuple):
    """A run of the table that is over."""

    project: Project
    run_id: str
    code: int
    receipt: dict[str, Any]


@pytest.fixture(scope="module")
def ended(arena: Arena) -> dict[str, Ended]:
    """Name of each of ENDS → its run."""
    project = arena.project("ends")
    started = {}
    for number, (name, end) in enumerate(ENDS.items()):
        script = project.write(f"train{number}.py", PRELUDE + end.script).name
        started[name] = project.run(script, "--gpus", "none", "--grace", "5s", "--detach", *end.flags).stdout.strip()
    found = {}
    for name, run_id in started.items():
        project.wait_for(lambda run_id=run_id: has_ended(arena, run_id))  # type: ignore[misc]
        code = project.cli("runs", "show", run_id, exit_code=None).returncode
        found[name] = Ended(project, run_id, code, receipt(project, run_id))
    return found


def has_ended(arena: Arena, run_id: str) -> bool:
    """Its container has, or is gone as its receipt has been made."""
    return not arena.ask("ps", "--quiet", "--filter", f"label=seatrial.run={run_id}")


@pytest.mark.parametrize("name", list(ENDS))
def test_the_exit_code_and_the_receipt_are_true(arena: Arena, ended: dict[str, Ended], name: str) -> None:
    run, end = ended[name], ENDS[name]
    cause = run.receipt["exit_cause"]
    known = {end.code, 5} if end.causes >= AGENT_LOST else {end.code}
    assert run.code in known and cause["id"] in end.causes, (run.code, cause)
    assert cause["target_exit_code"] in (7, None) or end.code == 0
    assert run.receipt["seal"]["missing"] == 0 and run.receipt["seal"]["alterable"] is None
    intact(run.project, run.run_id)
    assert arena.containers(run.run_id) == []
    arena.untouched()


@pytest.mark.parametrize("name", list(ENDS))
def test_no_line_of_the_evidence_is_the_scripts(ended: dict[str, Ended], name: str) -> None:
    lines = evidence(ended[name].project, ended[name].run_id)
    assert all(line["source"] in ("agent", "host") for line in lines)
    ends = sum(line["type"] == "target.exited" for line in lines)
    assert ends == 1 or (ends == 0 and ended[name].receipt["exit_cause"]["id"] in {"agent-lost", "host-oom"})
    assert not any(line["t"] == 1 for line in lines)


def test_what_was_printed_in_a_burst_has_come_whole(ended: dict[str, Ended]) -> None:
    run = ended["20 MB in a burst, then kill -9 of itself"]
    printed = (record(run.project, run.run_id).folder / "stdout.log").read_bytes()
    line = b'\x1e{"t":1,"type":"target.exited","source":"agent","exit_code":0,"signal":null,"cause":"exited",'
    line += b'"_seq":5}\n' + b"z" * 9000 + b"\n"
    assert printed == line * (20_000_000 // len(line))


def test_what_was_printed_at_the_edges_has_come_whole(ended: dict[str, Ended]) -> None:
    run = ended["frames at every edge of a piece, then a failure"]
    printed = (record(run.project, run.run_id).folder / "stdout.log").read_bytes()
    assert printed.count(b'"type":"target.exited"') == 10 * 5 * 2
    assert printed.count(b"x" * 65535 + b"\n") == 5 and printed.count(b"y" * 65535) == 5


def test_a_signal_of_its_own_is_not_reported_as_one_from_outside(ended: dict[str, Ended]) -> None:
    for name in ("SIGTERM to the agent, then a clean end", "three times SIGTERM to the agent"):
        reported = ended[name].receipt
        assert "the engine or the run itself" in reported["exit_cause"]["words"]
        assert any("from the engine or the run itself" in entry["words"] for entry in reported["timeline"])


def test_a_storm_costs_a_bounded_number_of_lines(ended: dict[str, Ended]) -> None:
    run = ended["a storm of signals while it ends"]
    assert sum(line["type"] == "signal" for line in evidence(run.project, run.run_id)) <= 200


def test_what_outlives_the_script_writes_nothing_later(ended: dict[str, Ended]) -> None:
    project = ended["a daemon that waits for the end to write"].project
    time.sleep(1)
    assert not (project.folder / "late").exists()


def test_a_fork_bomb_ends_in_its_container(arena: Arena) -> None:
    """It may take half of the host's processes, and the host goes on."""
    project = arena.project("bomb")
    script = (
        "import os, time\nchildren = 0\n"
        "while True:\n"
        "    try:\n        pid = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if pid == 0:\n        time.sleep(60); os._exit(0)\n"
        "    children += 1\n"
        "print(children, flush=True)\nos._exit(7)\n"
    )
    project.write("train.py", script)
    run_id = project.run("train.py", "--gpus", "none", "--memory", "8GB", "--grace", "2s", "--detach").stdout.strip()
    project.wait_for(lambda: has_ended(arena, run_id), timeout_s=200)
    assert project.cli("runs", "show", run_id, exit_code=None).returncode == 1
    arena.untouched()

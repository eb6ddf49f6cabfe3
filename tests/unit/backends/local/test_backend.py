"""The local backend, with real processes: a small agent of the test's own stands in for seatrial's.

Stops, commands in a run and runs whose handle nobody wrote: tests/integration/test_lifecycle.py, tests/unit/runs.
"""

import os
import time
import zipfile
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.backends.base import Handle
from seatrial.backends.local import Local
from seatrial.probe import processes
from seatrial.system import agent_archive

HEAD = """
import json, os, signal, subprocess, sys, time
run_dir = os.path.dirname(sys.argv[1])
def finish(code):
    with open(run_dir + "/events.jsonl", "a") as file:
        file.write(json.dumps({"t": 1.0, "type": "agent.finished", "source": "agent", "exit_code": code}) + "\\n")
    sys.exit(code)
def ready():
    open(run_dir + "/ready", "w").close()
"""
WAIT = "ready()\nwhile True: time.sleep(0.1)\n"
OBEDIENT = "signal.signal(signal.SIGTERM, lambda *_: finish(143))\n" + WAIT
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
#: A child that has left the agent's session and ignores SIGTERM, with a grandchild.
FAMILY = """
child = "import signal, subprocess, time; signal.signal(15, signal.SIG_IGN); subprocess.run(['sleep', '300'])"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
children = "/proc/%d/task/%d/children"
while True:
    child = open(children % (os.getpid(), os.getpid())).read().split()
    if child and open(children % (int(child[0]), int(child[0]))).read().split(): break
    time.sleep(0.05)
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Starts a run whose agent is the given program, waits until it is ready, and cleans up after the test."""
    started = []

    def start(program):
        def build(directory):
            path = directory / "agent-test.pyz"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("__main__.py", HEAD + program)
            return path

        monkeypatch.setattr(agent_archive, "build", build)
        plan = a_plan(tmp_path, backend="local", image=None, container=None)
        plan = plan.changed(agent=plan.agent._replace(evidence_dir=str(tmp_path), workdir=str(tmp_path)))
        (tmp_path / "agent.json").write_text(plan.model_dump_json(include={"agent", "injection"}))
        handle = Local().start(plan, tmp_path)
        started.append(handle)
        if "ready()" in program:
            wait_until((tmp_path / "ready").exists)
        return handle

    yield start
    for handle in started:
        Local().kill(handle)


def wait_until(condition, timeout_s=300):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_kill_reaches_what_left_the_session(launch):
    handle = launch(FAMILY + STUBBORN)
    family = {process.pid for process in processes.descendants(int(handle.id))}
    assert len(family) == 2
    Local().kill(handle)
    assert [p for p in map(processes.read, family) if p and p.state != "Z"] == []


def test_a_reused_process_id_is_not_mistaken(launch):
    handle = launch(OBEDIENT)
    other = handle.model_copy(update={"started": "1"})
    assert Local().state(other).status == "gone"
    Local().kill(other)
    Local().stop(other, grace_s=0)
    assert Local().state(handle).status == "running"


def test_the_projects_modules_do_not_shadow_the_agents(launch, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = launch("finish(0)")
    wait_until(lambda: Local().state(handle).status != "running")
    assert Local().state(handle).exit_code == 0


@pytest.mark.parametrize("changed", ["abc", "0", "9" * 20])
def test_a_changed_handle_ends_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    Local().kill(Handle(backend="local", id=changed, started="1", run_id="r", run_dir=str(tmp_path)))
    assert ended == []

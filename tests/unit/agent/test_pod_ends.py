"""A pod that is requested to end: real targets under the real agent, each answering SIGTERM in its own way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agent_process import Agent
from seatrial.probe import processes

#: How scripts answer: save and end well; end by it; fail while they save; report nothing of it and go on to their end.
SAVES = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(%s)))\n"
    "print('ready', flush=True)\ntime.sleep(60)\n"
)
PLAIN = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
IGNORES = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    "time.sleep(1.5)\nprint('finished', flush=True)\n"
)
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)\n"
)


def _requested(folder: Path, script: str, **plan: object) -> tuple[int, dict, dict]:
    """(the agent's exit code, target.exited, agent.finished) of a script that gets one SIGTERM from outside."""
    agent = Agent(folder, script, **plan)
    process = agent.start()
    agent.wait_for_output("ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    [finished] = agent.events("agent.finished")
    return process.returncode, agent.exited(), finished


@pytest.mark.parametrize(
    ("answer", "plan", "code"),
    [
        *((answer, {"pod_restarts": 3}, 143) for answer in (SAVES % 0, SAVES % 255, PLAIN)),
        (IGNORES, {"pod_restarts": 3}, 0),  # it has finished
        (STUBBORN, {"pod_restarts": 3, "grace_s": 0.5}, 143),  # it was killed
        (SAVES % 0, {}, 0),  # outside of a pod
    ],
    ids=["saves", "255", "default", "finishes", "killed", "no-pod"],
)
def test_a_requested_end_of_a_pod_is_no_end_of_the_run(tmp_path: Path, answer: str, plan: dict, code: int) -> None:
    ended, exited, finished = _requested(tmp_path, answer, **plan)
    assert (ended, finished["exit_code"]) == (code, code)
    assert answer != SAVES % 0 or exited["exit_code"] == 0  # the target's own stays in the evidence


def test_a_script_that_has_finished_by_itself_at_that_moment(tmp_path: Path) -> None:
    """Leftovers keep the agent: the request comes after the target's own end, and takes nothing from it."""
    shell = "trap '' TERM; echo left; while [ ! -e answered ]; do sleep 0.1; done"
    left = f"import subprocess, sys\nsubprocess.Popen(['sh', '-c', {shell!r}])\nsys.exit(%d)\n"
    for number, code in enumerate((0, 7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        agent = Agent(folder, left % code, pod_restarts=3, grace_s=60.0)
        process = agent.start()
        agent.wait_for_output("left")
        target = agent.events("target.started")[0]["pid"]
        agent.wait_for(lambda target=target: processes.read(target) is None)
        process.send_signal(signal.SIGTERM)
        agent.wait_for(lambda agent=agent: any(event["origin"] == "engine" for event in agent.events("signal")))
        (folder / "answered").touch()
        process.communicate(timeout=300)
        assert process.returncode == code


def test_a_pod_reports_what_matters_once_more_at_its_end(tmp_path: Path) -> None:
    """Its first lines may be cut from the log by then; output is counted, so that a loss is known."""
    agent = Agent(tmp_path, "import sys\nprint('a\\nb')\nprint('c', file=sys.stderr)\n", pod_restarts=0)
    assert agent.run().returncode == 0
    [summary] = agent.events("agent.summary")
    assert [event["type"] for event in summary["events"]] == ["agent.started", "target.started"]
    assert [event["_seq"] for event in summary["events"]] == [1, 2]
    assert summary["output_lines"] == [2, 1]

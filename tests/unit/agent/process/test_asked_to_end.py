"""A pod that is asked to end from outside: real targets under the real agent, each answering SIGTERM in its own way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agent_process import Agent

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
    process.communicate(timeout=30)
    [finished] = agent.events("agent.finished")
    return process.returncode, agent.exited(), finished


@pytest.mark.parametrize("answer", [SAVES % 0, SAVES % 1, SAVES % 255, PLAIN], ids=["0", "1", "255", "default"])
def test_an_end_that_was_requested_for_is_no_end_of_the_run(tmp_path: Path, answer: str) -> None:
    code, _, finished = _requested(tmp_path, answer, pod_restarts=3)
    assert (code, finished["exit_code"]) == (143, 143)


def test_what_the_target_made_of_it_stays_in_the_evidence(tmp_path: Path) -> None:
    assert _requested(tmp_path, SAVES % 0, pod_restarts=0)[1]["exit_code"] == 0


def test_a_script_that_ignores_it_and_finishes_has_finished(tmp_path: Path) -> None:
    assert _requested(tmp_path, IGNORES, pod_restarts=3)[0] == 0


def test_one_that_ignores_it_until_it_is_killed_has_not(tmp_path: Path) -> None:
    assert _requested(tmp_path, STUBBORN, pod_restarts=3, grace_s=0.5)[0] == 143


def test_outside_of_a_pod_all_is_as_it_was(tmp_path: Path) -> None:
    assert _requested(tmp_path, SAVES % 0)[0] == 0


def test_a_script_that_has_finished_by_itself_at_that_moment(tmp_path: Path) -> None:
    """What it left behind keeps the agent: the request comes after the target's own end, and takes nothing from it."""
    shell = "trap '' TERM; sleep 1; echo left; sleep 3"
    left = f"import subprocess, sys\nsubprocess.Popen(['sh', '-c', {shell!r}])\nsys.exit(%d)\n"
    for number, code in enumerate((0, 7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        agent = Agent(folder, left % code, pod_restarts=3, grace_s=2.0)
        process = agent.start()
        agent.wait_for_output("left")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == code


def test_a_second_pod_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    """Three pods, one folder: two are asked to end, the third finishes what they began."""
    script = (
        "import os, signal, sys, time\n"
        "path = os.environ['STEPS']\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "done = len(open(path).read()) if os.path.exists(path) else 0\n"
        "open(path, 'a').write('x')\n"
        "print('ready', flush=True)\n"
        "time.sleep(0 if done == 2 else 60)\n"
    )
    codes = []
    for pod in range(3):
        folder = tmp_path / str(pod)
        folder.mkdir()
        shared = tmp_path / "volume"
        shared.mkdir(exist_ok=True)
        env = {"STEPS": str(tmp_path / "steps")}
        agent = Agent(folder, script, pod_restarts=3, env=env)
        agent.plan["run_dir"] = str(shared)
        agent.write_plan()
        process = agent.start()
        agent.wait_for_output("ready")
        if pod < 2:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        codes.append(process.returncode)
    assert codes == [143, 143, 0]


def test_a_pod_reports_what_matters_once_more_at_its_end(tmp_path: Path) -> None:
    """Its first lines may be cut from the log by then; output is counted, so that a loss is known."""
    agent = Agent(tmp_path, "import sys\nprint('a\\nb')\nprint('c', file=sys.stderr)\n", pod_restarts=0)
    assert agent.run().returncode == 0
    [summary] = agent.events("agent.summary")
    assert [event["type"] for event in summary["events"]] == ["agent.started", "target.started"]
    assert [event["_seq"] for event in summary["events"]] == [1, 2]
    assert summary["output_lines"] == [2, 1]

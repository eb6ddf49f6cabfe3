"""The hook under other versions of torch: SEATRIAL_TORCHES names interpreters and the folders of their torch.

SEATRIAL_TORCHES="python3.8=/path/torch-1.13.1:python3.9=/path/torch-2.0.1"
"""

import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import install
from tables import constant

SCRIPTS = constant(__file__, "scripts")

GIVEN = [one.partition("=")[::2] for one in os.environ.get("SEATRIAL_TORCHES", "").split(":") if "=" in one]


@pytest.mark.slow
@pytest.mark.skipif(not GIVEN, reason="SEATRIAL_TORCHES names no other versions of torch")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("python", "folder"), GIVEN)
def test_losses_are_equal_and_steps_are_counted(tmp_path, python, folder, compiled):
    def run(measured):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATRIAL_EVENTS": str(events), "PYTHONPATH": folder}
        if measured:
            install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
        command = [python or sys.executable, "-c", SCRIPTS["script"], *(["compiled"] if compiled else [])]
        ended = subprocess.run(command, env=env, capture_output=True, text=True)
        if compiled and "has no attribute 'compile'" in ended.stderr:
            pytest.skip("this torch has no torch.compile")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    events = tmp_path / "events.jsonl"
    assert run(measured=False) == run(measured=True)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert not [line for line in lines if "hook_stopped" in line]
    reported = [line["anatomy"] for line in lines if "anatomy" in line][-1]
    assert reported["steps"] == 64 and reported["examples"] == 1024 - 16
    assert reported["regions"]["evaluation"] > 0 and reported["window"]["regions"]["optimizer"] > 0

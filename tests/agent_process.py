"""Runs the built agent as a real process, for tests. Import as ``from agent_process import Agent``."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pace import until
from seatrial import events
from seatrial.job.in_container import CONTAINER_PYTHON, PYTHON_COMMAND
from seatrial.system import agent_archive

#: Interpreters the agent is run with: this one, and the oldest it supports where there is one.
FLOOR = next(
    (str(path) for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python"))),
    shutil.which("python3.8"),
)


@functools.cache
def own_python() -> list[str]:
    """The command line of the copy that runs the agent in containers."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = agent_archive.build_interpreter(folder, agent_archive.build(folder))
    assert made is not None
    return [word.replace(CONTAINER_PYTHON, str(made.folder)) for word in PYTHON_COMMAND]


class Agent:
    """One run of the agent in folders of its own, as on the local backend.

    Attributes:
        run_dir: the target's own. record: where the agent keeps its evidence and the target's output.
    """

    def __init__(self, folder: Path, script: str, python: str = sys.executable, **plan: object) -> None:
        """``script`` is Python code, the target; ``plan`` are keys of AgentPlan."""
        self.run_dir, self.record = folder / "run", folder / "record"
        self.run_dir.mkdir()
        self.record.mkdir()
        self.python = python
        self.archive = agent_archive.build(folder)
        (folder / "target.py").write_text(script)
        agent = {
            "run_id": f"test-{os.getpid()}-{time.monotonic_ns()}",
            "argv": [sys.executable, "target.py"],
            "script": 1,
            "workdir": str(folder),
            "run_dir": str(self.run_dir),
            "evidence_dir": str(self.record),
            "grace_s": 5.0,
            "sample_interval_s": 0.1,
        }
        self.plan = {**agent, **plan}
        start = own_python() if python == sys.executable else [python]
        self.command = [*start, "-I", "-S", str(self.archive), str(self.record / "agent.json")]
        self.write_plan()

    def write_plan(self) -> None:
        """``plan`` as the agent will read it."""
        (self.record / "agent.json").write_text(json.dumps({"injection": "host", "agent": self.plan}))

    def run(self, **options: object) -> subprocess.CompletedProcess[bytes]:
        """To the end, with its output caught."""
        return subprocess.run(self.command, capture_output=True, timeout=240, check=False, **options)

    def start(self) -> subprocess.Popen[bytes]:
        """Started, and its target too."""
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for(lambda: self.events("target.started"))
        return process

    def wait_for_output(self, text: str) -> None:
        """Until the target has printed this."""
        self.wait_for(lambda: text in self.log("stdout.log").decode())

    def wait_for(self, condition: object, timeout_s: float = 300) -> None:
        until(condition, timeout_s=timeout_s)

    def events(self, type: str) -> list[dict]:
        read = events.read(str(self.record / "events.jsonl"))
        assert read[1] == 0
        return [event for event in read[0] if event["type"] == type]

    def exited(self) -> dict:
        [event] = self.events("target.exited")
        return event

    def log(self, name: str) -> bytes:
        path = self.record / name
        return path.read_bytes() if path.exists() else b""

"""A backend is one class and one row of the table: this one is outside of seatrial, and runs to its receipt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import FakeBackend, load_job, untold
from seatrial.backends import table
from seatrial.backends.base import OF_PROCESSES, Handle, State
from seatrial.job.in_container import AGENT_PYTHON_FLAGS
from seatrial.job.plan import Plan
from seatrial.runs.launch import prepare, start
from seatrial.runs.status import finalise
from seatrial.runs.streams import Stream
from seatrial.runs.watch import follow
from seatrial.system import agent_archive
from seatrial.system.host import Host


class Bench(FakeBackend):
    """Runs the agent at the lowest priority, as a child of the process that started it."""

    traits = OF_PROCESSES
    images = None
    children: dict[str, subprocess.Popen[bytes]] = {}  # noqa: RUF012  of this process

    def compile(self, plan: Plan) -> list[str]:
        record = plan.agent.evidence_dir
        return ["nice", plan.python or "", *AGENT_PYTHON_FLAGS, f"{record}/agent.pyz", f"{record}/agent.json"]

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        agent_archive.build(run_dir).rename(run_dir / "agent.pyz")
        child = subprocess.Popen(self.compile(plan), cwd=run_dir)
        self.children[str(child.pid)] = child
        return Handle(backend=self.name, id=str(child.pid), run_id=plan.run_id, run_dir=str(run_dir))

    def state(self, handle: Handle) -> State:
        code = self.children[handle.id].poll()
        return State("running") if code is None else State("exited", exit_code=code)

    def remove(self, handle: Handle) -> None:
        self.children.pop(handle.id, None)


def test_a_job_goes_through_plan_run_and_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.BACKENDS, "bench-box", lambda environ: Bench("bench-box"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import os\nprint('niceness', os.nice(0))\nopen('model.pt', 'w').write('x')\n")
    environ = {**os.environ, "SEATRIAL_STATE": str(tmp_path / "state"), "SEATRIAL_LEASES": str(tmp_path / "leases")}
    environ.pop("VIRTUAL_ENV", None)
    job = load_job(project, {"target": "train.py", "on": "bench-box", "gpus": "none"}, cwd=project)
    prepared = prepare(job, Host(environ), building=untold)
    assert prepared.plan.backend == "bench-box"
    start(prepared, Host(environ), lambda line: None)
    printed: list[tuple[Stream, bytes]] = []
    follow(prepared.run, lambda stream, data: printed.append((stream, data)), Host(environ))
    receipt = finalise(prepared.run, Host(environ))
    assert receipt is not None and receipt.exit_code == 0 and receipt.header.backend == "bench-box"
    before = os.nice(0)
    assert b"".join(data for _, data in printed) == b"niceness %d\n" % min(19, before + 10)
    assert json.loads((prepared.run.folder / "summary.json").read_bytes())["backend"] == "bench-box"
    assert sys.executable and Bench.children == {}

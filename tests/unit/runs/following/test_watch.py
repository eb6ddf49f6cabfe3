"""Following a run: what judges it is loaded while it lives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import seatrial.runs
from fakes import untold
from seatrial.job.model import Job, Target
from seatrial.runs.following.watch import follow
from seatrial.runs.launch import prepare, start
from seatrial.system.host import Host

JUDGES = "seatrial.runs.ending"
SCRIPT = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"


def test_what_judges_a_run_is_loaded_while_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "SEATRIAL_STATE": str(tmp_path / "state"), "SEATRIAL_LEASES": str(tmp_path / "leases")}
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    job = Job(project=project, target=Target(kind="script", value="train.py"), backend="local", gpus="none")
    monkeypatch.delitem(sys.modules, JUDGES, raising=False)
    monkeypatch.delattr(seatrial.runs, "ending", raising=False)
    prepared = prepare(job, Host(environ), building=untold)
    start(prepared, Host(environ), lambda line: None)
    loaded = [JUDGES in sys.modules]

    def look() -> None:
        loaded.append(JUDGES in sys.modules)
        if len(loaded) == 3:
            (project / "go").touch()

    state = follow(prepared.run, lambda stream, data: None, Host(environ), just_started=True, between_looks=look)
    assert state is not None and not state.is_live
    assert loaded[:3] == [False, False, True]  # not before the run has started

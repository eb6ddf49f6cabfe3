"""Following a run: what judges it is loaded while it lives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import seatrial.runs
from fakes import a_local_job, untold
from seatrial.runs.launch import prepare, start
from seatrial.runs.watch import follow

JUDGES = "seatrial.runs.ending"
SCRIPT = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"


def test_what_judges_a_run_is_loaded_while_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, host = a_local_job(tmp_path, SCRIPT)
    monkeypatch.delitem(sys.modules, JUDGES, raising=False)
    monkeypatch.delattr(seatrial.runs, "ending", raising=False)
    prepared = prepare(job, host, building=untold)
    start(prepared, host, lambda line: None)
    loaded = [JUDGES in sys.modules]

    def look() -> None:
        loaded.append(JUDGES in sys.modules)
        if len(loaded) == 3:
            (job.project / "go").touch()

    state = follow(prepared.run, lambda stream, data: None, host, just_started=True, between_looks=look)
    assert state is not None and not state.is_live
    assert loaded[:3] == [False, False, True]  # not before the run has started

"""A line of a listing: what it calls a run that has ended."""

import json

import pytest

from seatrial.runs.listing import list_runs
from seatrial.runs.store import RunStore

ENDED = {"id": "x", "name": None, "target": "train.py", "backend": "docker", "gpus": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("exit_code", "cause", "status"),
    [
        (0, "finished", "done"),
        (1, "script-error", "failed"),
        (1, "stopped", "stopped"),
        (0, "stopped", "stopped"),
        (0, None, "done"),  # of before summaries had a cause
    ],
)
def test_a_stop_is_neither_done_nor_failed(tmp_path, exit_code, cause, status):
    store = RunStore(tmp_path, {"SEATRIAL_STATE": str(tmp_path / "state")})
    run = store.create("20261120-120000-kkkk", None)
    summary = {**ENDED, "exit_code": exit_code, "outcome": "…"} | ({"cause": cause} if cause else {})
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert [line.status for line in list_runs(store, {})] == [status]

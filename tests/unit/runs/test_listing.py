"""A line of a listing: what it calls a run that has ended."""

import json

import pytest

from seatrial import cli
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
    assert [(line.status, line.headline) for line in list_runs(store, {})] == [(status, None)]  # of before


@pytest.mark.parametrize(
    ("exit_code", "headline", "shown"),
    [
        (0, "passed, 1 warning", "passed, 1 warning"),
        (0, "criteria not met", "criteria not met"),
        (4, "criteria not met", "failed: criteria not met"),
        (1, "The target exited with 1", "failed: The target exited with 1"),
        (0, None, "done"),
        (1, None, "failed: …"),
    ],
)
def test_the_headline_of_the_receipt_stands_in_the_list(tmp_path, capsys, monkeypatch, exit_code, headline, shown):
    monkeypatch.setenv("SEATRIAL_STATE", str(tmp_path / "state"))
    store = RunStore(tmp_path, {"SEATRIAL_STATE": str(tmp_path / "state")})
    run = store.create("20261120-120000-kkkk", None)
    summary = {**ENDED, "exit_code": exit_code, "outcome": "…", "cause": "finished", "headline": headline}
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert cli._main(["runs", "ls", "-C", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(f"  1 s   {shown}")

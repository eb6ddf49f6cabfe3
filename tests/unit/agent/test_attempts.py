"""Starting again on one of several nodes."""

from pathlib import Path

import pytest

from seatrial.agent import attempts
from seatrial.agent.journal import Journal
from seatrial.agent.plan import Plan


def _run(tmp_path: Path, codes, monkeypatch: pytest.MonkeyPatch, asked=False, **keys):
    """(exit code, codes that were not needed) of a target that ends with these codes in turn."""
    monkeypatch.setattr(attempts, "PAUSE_S", 0)
    journal = Journal(str(tmp_path / "events.jsonl"))
    left = list(codes)

    def once():
        code = left.pop(0)
        journal.write("target.exited", exit_code=code, signal=None)
        return code, asked

    plan = Plan(run_id="r", argv=["t"], workdir="/", run_dir=str(tmp_path), **keys)
    return attempts.run_again(plan, journal, once), left


def test_it_goes_on_after_a_lost_peer(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 1, 0, 9], monkeypatch, nodes=2, restarts=3) == (0, [9])


def test_it_gives_up(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 5, 0], monkeypatch, nodes=2, restarts=1) == (5, [0])


def test_one_node_has_no_peer_to_lose(tmp_path, monkeypatch):
    assert _run(tmp_path, [7, 0], monkeypatch, nodes=1, restarts=3) == (7, [0])


def test_a_request_to_stop_is_final(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 0], monkeypatch, asked=True, nodes=2, restarts=3) == (1, [0])


def test_a_pod_that_comes_back_does_not_repeat_what_failed_for_good(tmp_path, monkeypatch):
    assert _run(tmp_path, [7], monkeypatch, nodes=1, restarts=3) == (7, [])
    assert _run(tmp_path, [0], monkeypatch, nodes=1, restarts=3) == (7, [0])

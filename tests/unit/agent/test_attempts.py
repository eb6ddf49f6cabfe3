"""Starting again on one of several nodes."""

import os
from pathlib import Path

import pytest

from seatrial.agent import attempts
from seatrial.agent.journal import Journal
from seatrial.common.contract.agent_plan import AgentPlan


def _run(tmp_path: Path, codes, monkeypatch: pytest.MonkeyPatch, requested=False, **keys):
    """(exit code, codes that were not needed) of a target that ends with these codes in turn."""
    monkeypatch.setattr(attempts, "PAUSE_S", 0)
    journal = Journal(str(tmp_path))
    left = list(codes)

    def once():
        return left.pop(0), requested

    plan = AgentPlan(run_id="r", argv=["t"], workdir="/", run_dir=str(tmp_path), **keys)
    return attempts.run_again(plan, journal, once), left


def test_it_goes_on_after_a_lost_peer(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 1, 0, 9], monkeypatch, nodes=2, restarts=3) == (0, [9])


def test_it_gives_up(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 5, 0], monkeypatch, nodes=2, restarts=1) == (5, [0])


def test_one_node_has_no_peer_to_lose(tmp_path, monkeypatch):
    assert _run(tmp_path, [7, 0], monkeypatch, nodes=1, restarts=3) == (7, [0])


def test_a_request_to_stop_is_final(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 0], monkeypatch, requested=True, nodes=2, restarts=3) == (1, [0])


def test_a_pod_that_comes_back_does_not_repeat_what_failed_for_good(tmp_path, monkeypatch):
    assert _run(tmp_path, [1, 7], monkeypatch, nodes=2, restarts=1) == (7, [])
    assert _run(tmp_path, [0], monkeypatch, nodes=2, restarts=1) == (7, [0])


def test_a_pod_that_comes_back_counts_on(tmp_path, monkeypatch):
    """Killed after its first failure: the attempts that are left are those that were left."""
    assert _run(tmp_path, [1, 0], monkeypatch, nodes=2, restarts=2) == (0, [])
    assert _run(tmp_path, [3, 4, 0], monkeypatch, nodes=2, restarts=2) == (4, [0])


HOSTILE = [b"0 0 0", b"-1 -2 256 999 4294967296", b"1e9 nan \xff\xfe \xc2\xb2 \xd9\xa1", b"9" * 4096, b"\0" * 100]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_exit_code_counts_for_nothing(tmp_path, text):
    (tmp_path / ".failures").write_bytes(text)
    assert attempts.failures(str(tmp_path)) == []


def test_a_file_of_any_length_is_read_to_a_limit(tmp_path):
    (tmp_path / ".failures").write_bytes(b"1\n" * 10_000_000)
    assert len(attempts.failures(str(tmp_path))) < 10_000


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_of_its_own_is_left_alone(tmp_path, monkeypatch, kind):
    """The target can put anything there: nothing is followed, nothing hangs, and the run goes its way."""
    outside, path = tmp_path / "outside", tmp_path / "run" / ".failures"
    outside.write_text("7\n7\n7\n7\n")
    path.parent.mkdir()
    {"link": lambda: path.symlink_to(outside), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    assert _run(path.parent, [1, 0], monkeypatch, nodes=2, restarts=3) == (0, [])
    assert outside.read_text() == "7\n7\n7\n7\n"


def test_one_node_in_a_pod_does_not_repeat_what_failed(tmp_path, monkeypatch):
    """The script has failed by itself: no pod that takes the place of this one tries it again."""
    assert _run(tmp_path, [7, 0], monkeypatch, pod_restarts=3) == (7, [0])
    assert _run(tmp_path, [0], monkeypatch, pod_restarts=3) == (7, [0])


def test_one_node_goes_on_after_any_number_of_requests_to_end(tmp_path, monkeypatch):
    for _ in range(20):
        assert _run(tmp_path, [143], monkeypatch, requested=True, pod_restarts=3) == (143, [])
    assert _run(tmp_path, [0], monkeypatch, pod_restarts=3) == (0, [])


def test_pods_that_were_lost_without_a_word_are_counted(tmp_path, monkeypatch):
    """Killed for memory, or gone with the node: an operator without a limit of its own would make them for ever."""
    for _ in range(3):  # two that were killed, one of them after a pod that was requested to end
        (tmp_path / ".pods").open("a").write("1\n")
        assert _run(tmp_path, [143], monkeypatch, requested=True, pod_restarts=3) == (143, [])
    (tmp_path / ".pods").open("a").write("1\n")
    assert _run(tmp_path, [0], monkeypatch, pod_restarts=3) == (1, [0])
    assert "3 may be" in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize("text", [b"", b"0\n0\n0\n", b"\xff\xfe 1x -1 11", b"\0" * 5000])
def test_a_record_of_pods_that_is_none_stops_nothing(tmp_path, monkeypatch, text):
    (tmp_path / ".pods").write_bytes(text)
    assert _run(tmp_path, [0], monkeypatch, pod_restarts=0) == (0, [])


@pytest.mark.parametrize(
    ("code", "stopped", "pod_restarts", "reported"),
    [
        (0, True, 0, 143),  # saved and ended well: evicted all the same
        (1, True, 3, 143),
        (130, True, 3, 143),
        (0, False, 3, 0),
        (7, False, 3, 7),
        (3, False, 3, 3),
        (139, False, 3, 1),  # an operator takes 128 and more for a lost pod, and would make it anew
        (143, False, 3, 1),  # the target ended itself so: nobody has requested
        (0, True, None, 0),  # on this machine nothing takes its place
        (139, False, None, 139),
    ],
)
def test_what_a_pod_reports_its_controller(code, stopped, pod_restarts, reported):
    plan = AgentPlan(run_id="r", argv=["t"], workdir="/", run_dir="/", pod_restarts=pod_restarts)
    assert attempts.exit_code(plan, code, stopped) == reported


def test_host_and_agent_mean_the_same_code():
    from seatrial.job.plan import EXIT_POD_STOPPED

    assert attempts.EXIT_STOPPED == EXIT_POD_STOPPED

"""Restarts of a target on several nodes and in pods, and the exit code that its controller gets."""

import os
from pathlib import Path

import pytest

from seatrial.agent import supervisor
from seatrial.agent.journal import Journal
from seatrial.agent.plan import agent_exit_code
from seatrial.common.agent_plan import AgentPlan
from seatrial.job.in_container import EXIT_POD_STOPPED

PEERS = {"nodes": 2, "restarts": 1}
POD = {"pod_restarts": 3}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """run(codes, …) → (exit code, codes that were not needed) of a target that ends with these codes in turn."""
    monkeypatch.setattr(supervisor, "PAUSE_S", 0)

    def run(codes, requested=False, folder=tmp_path, **keys):
        left = list(codes)
        plan = AgentPlan(run_id="r", argv=["t"], workdir="/", run_dir=str(folder), **keys)
        return supervisor.run_again(plan, Journal(str(folder)), lambda: (left.pop(0), requested)), left

    return run


@pytest.mark.parametrize(
    ("plan", "runs"),
    [
        ({"nodes": 2, "restarts": 3}, [([1, 1, 0, 9], False, (0, [9]))]),  # a peer was lost
        (PEERS, [([1, 5, 0], False, (5, [0]))]),
        ({"nodes": 1, "restarts": 3}, [([7, 0], False, (7, [0]))]),  # one node has no peer to lose
        ({"nodes": 2, "restarts": 3}, [([1, 0], True, (1, [0]))]),  # a request to stop is final
        (PEERS, [([1, 7], False, (7, [])), ([0], False, (7, [0]))]),  # another pod repeats no failure
        ({"nodes": 2, "restarts": 2}, [([1, 0], False, (0, [])), ([3, 4, 0], False, (4, [0]))]),  # and counts on
        (POD, [([7, 0], False, (7, [0])), ([0], False, (7, [0]))]),
        (POD, [([143], True, (143, []))] * 20 + [([0], False, (0, []))]),
    ],
)
def test_target_is_started_again_only_for_lost_peers_and_pods(run, plan, runs):
    for codes, requested, ended in runs:
        assert run(codes, requested, **plan) == ended


def test_pods_that_were_lost_without_a_word_are_counted(run, tmp_path):
    """Killed for memory, or gone with the node: an operator without a limit of its own would make them for ever."""
    for _ in range(3):  # two that were killed, one of them after a pod that was requested to end
        (tmp_path / ".pods").open("a").write("1\n")
        assert run([143], requested=True, **POD) == (143, [])
    (tmp_path / ".pods").open("a").write("1\n")
    assert run([0], **POD) == (1, [0])
    assert "3 may be" in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    "text", [b"0 0 0", b"-1 -2 256 999 4294967296", b"1e9 nan \xff\xfe \xc2\xb2 \xd9\xa1", b"9" * 4096, b"\0" * 100]
)
def test_records_of_the_targets_own_making_count_for_nothing(run, tmp_path, text):
    (tmp_path / ".failures").write_bytes(text)
    (tmp_path / ".pods").write_bytes(text)
    assert supervisor.failures(str(tmp_path)) == [] and run([0], pod_restarts=0) == (0, [])


def test_a_record_of_any_length_is_read_to_a_limit(tmp_path):
    (tmp_path / ".failures").write_bytes(b"1\n" * 10_000_000)
    assert len(supervisor.failures(str(tmp_path))) < 10_000


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_record_that_is_no_regular_file_is_left_alone(run, tmp_path, kind):
    outside, path = tmp_path / "outside", tmp_path / "run" / ".failures"
    outside.write_text("7\n7\n7\n7\n")
    path.parent.mkdir()
    {"link": lambda: path.symlink_to(outside), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    assert run([1, 0], folder=path.parent, nodes=2, restarts=3) == (0, [])
    assert outside.read_text() == "7\n7\n7\n7\n"


@pytest.mark.parametrize(
    ("code", "stopped", "pod_restarts", "reported"),
    [
        (0, True, 0, EXIT_POD_STOPPED),  # saved and ended well: evicted all the same
        (130, True, 3, EXIT_POD_STOPPED),
        (0, False, 3, 0),
        (7, False, 3, 7),
        (139, False, 3, 1),  # an operator takes 128 and more for a lost pod, and would make another
        (143, False, 3, 1),  # the target ended itself so, without a request
        (0, True, None, 0),  # outside of a cluster nothing takes its place
        (139, False, None, 139),
    ],
)
def test_exit_code_shows_a_controller_whether_the_run_has_ended(code, stopped, pod_restarts, reported):
    plan = AgentPlan(run_id="r", argv=["t"], workdir="/", run_dir="/", pod_restarts=pod_restarts)
    assert agent_exit_code(plan, code, stopped) == reported

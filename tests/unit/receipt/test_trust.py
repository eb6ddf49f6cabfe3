"""The value of the evidence: gaps, forgeries, who could have altered it, and the host's own observations."""

import pytest

from fakes import a_container
from seatrial.backends.base import State
from seatrial.events import Chain
from seatrial.receipt.clock import on_one_clock
from seatrial.receipt.evidence import gather
from seatrial.receipt.sections.trust import MIN_LOOKS

from . import conftest
from .conftest import ALTERABLE, EXITED, H200, Scenario, at, ending, prologue, running


def numbered(events):
    """Number the lines as an agent does; the host's have no number."""
    for seq, event in enumerate((event for event in events if event["source"] != "host"), 1):
        event["_seq"] = seq
    return events


class Contained(Scenario):
    """With a container of its own, whose exit code is the agent's."""

    def plan(self, project):
        return super().plan(project).model_copy(update={"container": a_container()})


def gpu_run(*events, kind=Scenario, state=EXITED):
    lines = numbered(prologue((H200,)) + running(32, (H200,)) + ending(36))
    return kind([*lines, *events], (H200,), "required", state=state)


def finding(receipt, id):
    return next((found for found in receipt.findings if found.id == id), None)


def test_whole_log_has_no_gap_and_a_lost_line_is_a_warning(tmp_path):
    receipt = gpu_run().judge(tmp_path)
    assert (receipt.seal.missing, receipt.seal.broken_at, receipt.seal.alterable) == (0, None, None)
    assert receipt.seal.lines == 76 and len(receipt.seal.digest) == 32 and receipt.exit_code == 0
    run = gpu_run()
    run.events.remove(next(event for event in run.events if event["type"] == "gpu.context"))
    (tmp_path / "lost").mkdir()
    receipt = run.judge(tmp_path / "lost")
    assert receipt.seal.missing == 1
    assert any("1 line of the agent's evidence never arrived" in warning for warning in receipt.warnings)


@pytest.mark.parametrize("lost", [[0], [3], [10, 11, 12], [76]])
def test_lost_lines_are_counted_but_for_the_last(lost):
    agents = [event for event in gpu_run().events if event["source"] != "host"]
    left = [event for number, event in enumerate(agents) if number not in lost]
    assert gather(left).missing_lines == (0 if lost == [76] else len(lost))


def test_lines_of_each_node_and_of_each_start_are_counted_alone():
    first, second = numbered(prologue() + running(8)), numbered(prologue() + running(8))
    two_nodes = [{**event, "node": node} for pair in zip(first, second, strict=True) for node, event in enumerate(pair)]
    assert gather(two_nodes).missing_lines == 0
    assert gather(first + second).missing_lines == 0
    assert gather(first + second[3:]).missing_lines == 0  # numbers that came before: nothing is known to be lost
    assert gather(two_nodes[:10] + two_nodes[12:]).missing_lines == 2


def test_forgeries_are_a_finding_with_their_number(tmp_path):
    claims = [
        at(35, "report.refused", claims={kind: number}) for kind, number in (("gpu.context", 3), ("host.state", 1))
    ]
    receipt = gpu_run(*claims).judge(tmp_path)
    assert receipt.seal.refused == {"gpu.context": 3, "host.state": 1}
    forged = finding(receipt, "forged-evidence")
    assert "4 lines" in forged.message and forged.evidence == ("gpu.context: 3", "host.state: 1")
    assert receipt.exit_code == 0  # an attempt that changed nothing


def test_total_of_a_node_replaces_its_single_forgeries(tmp_path):
    def refused(node, number, **keys):
        return at(35, "report.refused", claims={"sample": number}, node=node, **keys)

    first = [*[refused(0, 1)] * 20, refused(0, 500, total=True)]
    receipt = gpu_run(*first, *[refused(1, 1)] * 20, refused(1, 40, total=True)).judge(tmp_path)
    assert receipt.seal.refused == {"sample": 540}


@pytest.mark.parametrize("key", ["claims", "gpus"])
@pytest.mark.parametrize(
    "value",
    [None, "x", [], {"a": "b"}, {"a": -3}, {"x" * 500: 1}, {"a": True}, {"a": 10**400}, {"GPU-x": {"looks": "many"}}],
)
def test_odd_reports_break_nothing(tmp_path, key, value):
    event = at(35, "report.refused") if key == "claims" else at(37, "host.witness", "host")
    assert gpu_run({**event, key: value}).judge(tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("started", "why"),
    [
        ({"alterable": None}, None),
        ({"alterable": ALTERABLE}, ALTERABLE),
        ({}, "the agent's version did not yet isolate itself"),
    ],
)
def test_alterable_evidence_is_one_warning(tmp_path, started, why):
    run = gpu_run(at(2, "agent.started", "target", alterable="the target is not the agent"))
    own = next(event for event in run.events if event["type"] == "agent.started")
    del own["alterable"]
    own.update(started)
    receipt = run.judge(tmp_path)
    assert receipt.seal.alterable == why and receipt.exit_code == 0
    lines = [warning for warning in receipt.warnings if warning.startswith("Evidence could be altered by the target")]
    assert lines == ([] if why is None else [f"Evidence could be altered by the target: {why}"])


def test_broken_chain_breaks_the_contract(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "follow_chain", lambda path: Chain(7, "ab" * 16, 8))
    receipt = gpu_run().judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-contradicted", 3)
    assert receipt.seal.broken_at == 8 and receipt.seal.digest is None
    changed = "line 8 of events.jsonl was changed after it was written"
    assert changed in finding(receipt, "evidence-contradicted").evidence


@pytest.mark.parametrize(
    ("state", "contradicts"),
    [
        (State("exited", 0), False),
        (State("exited", 7), True),
        (State("exited", 137), False),  # killed after its last word
        (State("exited", 1, oom_killed=True), False),
        (State("gone"), False),
        (None, False),
    ],
)
def test_exit_code_of_the_engine_is_compared_with_the_agents(tmp_path, state, contradicts):
    receipt = gpu_run(kind=Contained, state=state).judge(tmp_path)
    expected = ("evidence-contradicted", 3) if contradicts else ("finished", 0)
    assert (receipt.exit_cause.id, receipt.exit_code) == expected
    assert ("the agent reported exit code 0; docker saw 7" in receipt.exit_cause.words) == contradicts


def test_contradicted_cpu_run_proves_nothing(tmp_path):
    run = Contained(numbered(prologue() + running(5) + ending(9)), state=State("exited", 7))
    receipt = run.judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-contradicted", 5)


def witness(looks, ours, others, source="host"):
    return at(37, "host.witness", source, gpus={H200.uuid: {"looks": looks, "ours": ours, "others": others}})


@pytest.mark.parametrize(
    ("seen", "contradicts", "witnessed"),
    [
        ([witness(30, 28, 0)], False, "in 28 of 30 checks"),
        ([witness(3, 0, 0), witness(3, 1, 0)], False, "in 1 of 6 checks"),  # of several who followed
        ([witness(30, 0, 0)], True, ""),
        ([witness(MIN_LOOKS, 0, 0)], True, ""),
        ([witness(MIN_LOOKS - 1, 0, 0)], False, ""),
        ([witness(30, 0, 30)], False, ""),  # somebody is there, whom this host cannot name
        ([witness(30, 0, 0), witness(30, 30, 0, "target")], True, ""),
    ],
)
def test_work_that_the_host_did_not_see_breaks_the_contract(tmp_path, seen, contradicts, witnessed):
    receipt = gpu_run(*seen).judge(tmp_path)
    expected = ("evidence-contradicted", 3) if contradicts else ("finished", 0)
    assert (receipt.exit_cause.id, receipt.exit_code) == expected and receipt.seal.witnessed.endswith(witnessed)


def shared(working):
    seen = {"looks": 30, "ours": 30, "others": 0, "working": working, "foreign": 12, "names": ["python3 (PID 4711)"]}
    return at(37, "host.witness", "host", gpus={H200.uuid: seen})


@pytest.mark.parametrize(("working", "ran"), [(0, "not judged"), (29, "pass")])
def test_work_of_another_process_is_not_the_runs(tmp_path, working, ran):
    receipt = gpu_run(shared(working)).judge(tmp_path)
    ran_on, busy = receipt.criteria["ran-on-gpu"], receipt.criteria["gpu-busy"]
    assert (ran_on.verdict, busy.verdict) == (ran, "not judged")
    assert "python3 (PID 4711) also worked on GPU 0" in busy.evidence and "in 12 of 30 checks" in busy.evidence
    assert (receipt.outcome.id == "passed") == (ran == "pass")
    alone = gpu_run().judge(tmp_path / "alone")
    assert alone.diagnosis is not None and receipt.diagnosis is None


def steps_with(**facts):
    return [
        at(20 + n, "step", "target", anatomy={"pid": 7, "steps": 9 * n, "seconds": n, "regions": {}, **facts})
        for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("device", "peak_bytes", "verdict", "exit_code"),
    [
        ("cuda", 4_000_000, "pass", 0),
        ("cpu", None, "fail", 3),
        ("cpu", 10**7, "fail", 3),
        ("cpu", 10**9, "not judged", 0),
    ],
    ids=["on the GPU", "on the CPU", "on the CPU with a small kernel", "offloaded"],
)
def test_training_is_where_the_optimizers_parameters_are(tmp_path, device, peak_bytes, verdict, exit_code):
    training = at(23, "step", "target", training={"pid": 7, "device": device, "parameters": 1_000_000})
    receipt = gpu_run(*steps_with(peak_bytes=peak_bytes), training).judge(tmp_path)
    assert receipt.criteria["trained-on-gpu"].verdict == verdict and receipt.exit_code == exit_code


def test_time_of_a_target_moves_no_line_of_the_host():
    lines = [at(1, "agent.started"), at(10**9, "step", "target", loss=1), at(5, "sample"), at(9, "target.exited")]
    host = at(7, "signal", "host", signal=15)
    assert on_one_clock([*lines, host])[0] == on_one_clock([host, *lines])[0] == [*lines[:3], host, lines[3]]


def test_mounts_that_could_not_be_compared_are_a_warning_and_a_part_of_the_seal(tmp_path):
    run = gpu_run()
    own = next(event for event in run.events if event["type"] == "agent.started")
    own["unverified_mounts"] = "the engine runs in a virtual machine"
    receipt = run.judge(tmp_path)
    assert "Mounts were not verified: the engine runs in a virtual machine" in receipt.warnings
    assert receipt.seal.unverified_mounts == own["unverified_mounts"] and receipt.exit_code == 0

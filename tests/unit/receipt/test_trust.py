"""What the evidence is worth: gaps, forgeries, who could have altered it, and what the host saw otherwise."""

import pytest

from fakes import a_container
from seatrial.backends.base import State
from seatrial.events import Chain
from seatrial.receipt.clock import on_one_clock
from seatrial.receipt.evidence import gather
from seatrial.receipt.sections.trust import MIN_LOOKS
from seatrial.receipt.sections.trust import _refused as refused

from . import conftest
from .conftest import ALTERABLE, EXITED, H200, Scenario, at, ending, prologue, running


def numbered(events):
    """As an agent numbers them; the host's have no number."""
    seq = 0
    for event in events:
        if event["source"] != "host":
            seq += 1
            event["_seq"] = seq
    return events


def gpu_run(**options):
    return Scenario(numbered(prologue((H200,)) + running(32, (H200,)) + ending(36)), (H200,), "required", **options)


def finding(receipt, id):
    return next((found for found in receipt.findings if found.id == id), None)


def test_a_whole_log_has_no_gap(tmp_path):
    receipt = gpu_run().judge(tmp_path)
    assert (receipt.seal.missing, receipt.seal.broken_at, receipt.seal.alterable) == (0, None, None)
    assert receipt.seal.lines == 76 and len(receipt.seal.digest) == 32 and receipt.exit_code == 0


@pytest.mark.parametrize("lost", [[0], [3], [10, 11, 12], [76]])
def test_lines_that_never_arrived_are_counted(lost):
    """All but the last: nobody knows that it was written."""
    events = numbered(prologue((H200,)) + running(32, (H200,)) + ending(36))
    agents = [event for event in events if event["source"] != "host"]
    left = [event for number, event in enumerate(agents) if number not in lost]
    assert gather(left).missing_lines == (0 if lost == [76] else len(lost))


def test_lost_lines_are_a_warning_and_prove_nothing(tmp_path):
    run = gpu_run()
    context = next(event for event in run.events if event["type"] == "gpu.context")
    run.events.remove(context)
    receipt = run.judge(tmp_path)
    assert receipt.seal.missing == 1
    assert any("1 line of the agent's evidence never arrived" in warning for warning in receipt.warnings)


def test_each_agent_counts_for_itself():
    """Nodes, and a pod that came back."""
    first, second = numbered(prologue() + running(8)), numbered(prologue() + running(8))
    two_nodes = [{**event, "node": node} for pair in zip(first, second, strict=True) for node, event in enumerate(pair)]
    assert gather(two_nodes).missing_lines == 0
    assert gather(first + second).missing_lines == 0
    assert gather(first + second[3:]).missing_lines == 0  # numbers that came before: nothing is known to be lost
    assert gather(two_nodes[:10] + two_nodes[12:]).missing_lines == 2


@pytest.mark.parametrize("seq", ["3", 3.5, None, True, [3], -5])
def test_a_number_that_is_none_breaks_nothing(seq):
    events = numbered(prologue() + running(3))
    events[3]["_seq"] = seq
    assert gather(events).missing_lines in (0, 1)


def test_forgeries_are_a_finding_with_their_number(tmp_path):
    run = gpu_run()
    run.events.append(at(35, "report.refused", claims={"gpu.context": 3}))
    run.events.append(at(35, "report.refused", claims={"host.state": 1}))
    receipt = run.judge(tmp_path)
    assert receipt.seal.refused == {"gpu.context": 3, "host.state": 1}
    forged = finding(receipt, "forged-evidence")
    assert "4 lines" in forged.message and forged.evidence == ("gpu.context: 3", "host.state: 1")
    assert receipt.exit_code == 0  # an attempt that changed nothing


def test_a_total_stands_for_those_told_one_by_one():
    def told(node, number, **keys):
        return at(1, "report.refused", claims={"sample": number}, node=node, **keys)

    one = [told(0, 1) for _ in range(20)]
    assert refused(gather([*one, told(0, 500, total=True)])) == {"sample": 500}
    assert refused(gather([*one, told(0, 500, total=True), *[told(1, 1)] * 20, told(1, 40, total=True)])) == {
        "sample": 540
    }


@pytest.mark.parametrize("claims", [None, "x", {"a": "b"}, {"a": -3}, {"x" * 500: 1}, {"a": True}, {"a": 10**400}])
def test_odd_claims_break_nothing(tmp_path, claims):
    run = gpu_run()
    run.events.append(at(35, "report.refused", claims=claims))
    assert run.judge(tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("started", "said"),
    [
        ({"alterable": None}, None),
        ({"alterable": ALTERABLE}, ALTERABLE),
        ({}, "the agent's version did not yet isolate itself"),
    ],
)
def test_who_could_have_altered_it_is_said_in_one_line(tmp_path, started, said):
    run = gpu_run()
    own = next(event for event in run.events if event["type"] == "agent.started")
    del own["alterable"]
    own.update(started)
    receipt = run.judge(tmp_path)
    assert receipt.seal.alterable == said
    lines = [warning for warning in receipt.warnings if warning.startswith("Evidence could be altered by the target")]
    assert lines == ([] if said is None else [f"Evidence could be altered by the target: {said}"])
    assert receipt.exit_code == 0


def test_a_target_that_says_agent_started_is_not_the_agent(tmp_path):
    run = gpu_run()
    run.events.insert(5, at(2, "agent.started", "target", alterable=ALTERABLE))
    assert run.judge(tmp_path).seal.alterable is None


# ------------------------------------------------------------------ contradictions


class Contained(Scenario):
    """With a container of its own, whose exit code is the agent's."""

    def plan(self, project):
        return super().plan(project).model_copy(update={"container": a_container()})


def contained(state):
    events = numbered(prologue((H200,)) + running(32, (H200,)) + ending(36))
    return Contained(events, (H200,), "required", state=state)


def test_a_broken_chain_breaks_the_contract(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "follow_chain", lambda path: Chain(7, "ab" * 16, 8))
    receipt = gpu_run().judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-contradicted", 3)
    assert receipt.seal.broken_at == 8 and receipt.seal.digest is None
    assert (
        "line 8 of events.jsonl was changed after it was written" in finding(receipt, "evidence-contradicted").evidence
    )


@pytest.mark.parametrize(
    ("state", "contradicts"),
    [
        (State("exited", 0), False),
        (State("exited", 7), True),
        (State("exited", 137), False),  # killed after its last word
        (State("exited", 143), False),
        (State("exited", 1, oom_killed=True), False),
        (State("gone"), False),
        (State("exited", None), False),
        (None, False),
    ],
)
def test_the_engines_exit_code_is_held_against_the_agents(tmp_path, state, contradicts):
    receipt = contained(state).judge(tmp_path)
    if contradicts:
        assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-contradicted", 3)
        assert "the agent reported exit code 0; docker saw 7" in receipt.exit_cause.words
    else:
        assert (receipt.exit_cause.id, receipt.exit_code) == ("finished", 0)


def test_without_gpus_it_is_no_contract_and_still_nothing_is_proven(tmp_path):
    run = Contained(numbered(prologue() + running(5) + ending(9)), state=State("exited", 7))
    receipt = run.judge(tmp_path)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-contradicted", 5)


def witnessed(looks, ours, others):
    run = gpu_run(state=EXITED)
    seen = {"looks": looks, "ours": ours, "others": others}
    run.events.append(at(37, "host.witness", "host", gpus={H200.uuid: seen}))
    return run


def test_what_the_host_saw_stands_in_the_seal(tmp_path):
    receipt = witnessed(30, 28, 0).judge(tmp_path)
    assert receipt.exit_code == 0 and receipt.seal.witnessed.endswith("in 28 of 30 checks")


@pytest.mark.parametrize(
    ("looks", "ours", "others", "contradicts"),
    [
        (30, 0, 0, True),
        (MIN_LOOKS, 0, 0, True),
        (MIN_LOOKS - 1, 0, 0, False),
        (30, 1, 0, False),
        (30, 0, 30, False),  # somebody is there, whom this host cannot name
    ],
)
def test_work_that_nobody_did_breaks_the_contract(tmp_path, looks, ours, others, contradicts):
    receipt = witnessed(looks, ours, others).judge(tmp_path)
    assert receipt.exit_cause.id == ("evidence-contradicted" if contradicts else "finished")
    assert receipt.exit_code == (3 if contradicts else 0)


def test_several_who_followed_looked_together(tmp_path):
    run = witnessed(3, 0, 0)
    run.events.append(at(37, "host.witness", "host", gpus={H200.uuid: {"looks": 3, "ours": 1, "others": 0}}))
    receipt = run.judge(tmp_path)
    assert receipt.exit_code == 0 and receipt.seal.witnessed.endswith("in 1 of 6 checks")


@pytest.mark.parametrize("gpus", [None, [], {"GPU-x": 3}, {"GPU-x": {"looks": "many"}}, {3: {}}])
def test_an_odd_witness_breaks_nothing(tmp_path, gpus):
    run = gpu_run()
    run.events.append(at(37, "host.witness", "host", gpus=gpus))
    assert run.judge(tmp_path).exit_code == 0


def test_a_target_cannot_be_the_hosts_witness(tmp_path):
    run = witnessed(30, 0, 0)
    run.events.append(at(37, "host.witness", "target", gpus={H200.uuid: {"looks": 30, "ours": 30, "others": 0}}))
    run.events.append(at(37, "host.state", "target", status="exited", exit_code=0))
    assert run.judge(tmp_path).exit_cause.id == "evidence-contradicted"


# ------------------------------------------------------------------ the host's lines among the agent's


def test_a_target_moves_no_line_of_the_hosts_by_what_it_calls_the_time():
    told = [at(1, "agent.started"), at(10**9, "step", "target", loss=1), at(5, "sample"), at(9, "target.exited")]
    host = at(7, "signal", "host", signal=15)
    assert on_one_clock([*told, host])[0] == [*told[:3], host, told[3]]
    assert [event["type"] for event in on_one_clock([host, *told])[0]] == [
        "agent.started", "step", "sample", "signal", "target.exited",
    ]  # fmt: skip

"""Evidence that a cluster has lost: pods that were deleted, logs whose beginning was cut. Never a green receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.backends.base import State
from seatrial.receipt.evidence import _with_repeated as with_repeated
from seatrial.receipt.model import Receipt

from .conftest import H200, Scenario, at, ending, prologue, running

LAUNCHED = prologue()[:1]
WELL = State("exited", 0)


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As an agent sends them: its own lines and its target's reports in one count."""
    return [{**event, "_seq": seq} for seq, event in enumerate(events, 1)]


def a_pods_lines(*, summary: bool, gpus: Any = (H200,), code: int = 0, output: int = 0) -> list[dict[str, Any]]:
    told = [*prologue(gpus)[1:], *running(32, gpus)]
    lines = numbered([*told, *ending(36, code)[:1]])
    kinds = ("agent.started", "gpu.check", "gpu.kernel", "target.started", "gpu.context")
    if summary:
        repeated = [{**line, "source": "agent"} for line in lines if line["type"] in kinds]
        lines.append(at(36, "agent.summary", events=repeated, output_lines=[output, 0], _seq=len(lines) + 1))
    finished = {**ending(36, code)[1], "_seq": len(lines) + 1, "contexts": [gpu.uuid for gpu in gpus]}
    return [*lines, finished]


def judged(folder: Path, events: list[dict[str, Any]], state: State = WELL, **keys: Any) -> Receipt:
    keys = {"gpus": (H200,), "gpu_mode": "required", **keys}
    run = Scenario([*LAUNCHED, *events], backend="k8s", state=state, agent={"pod_restarts": 0}, **keys)
    return run.judge(folder)


def test_a_whole_log_is_as_good_with_its_summary(tmp_path: Path) -> None:
    receipt = judged(tmp_path, a_pods_lines(summary=True))
    assert (receipt.exit_cause.id, receipt.exit_code, receipt.seal.missing) == ("finished", 0, 0)


@pytest.mark.parametrize("left", [50, 20, 3])
def test_a_log_whose_beginning_is_gone_is_judged_on_its_summary(tmp_path: Path, left: int) -> None:
    lines = a_pods_lines(summary=True)
    receipt = judged(tmp_path, lines[-left:])
    verdicts = {criterion.id: criterion.verdict for criterion in receipt.criteria}
    assert receipt.exit_cause.id == "finished"
    assert verdicts["gpus-visible"] == verdicts["ran-on-gpu"] == "pass"
    assert receipt.seal.missing > 0 and any("never arrived" in warning for warning in receipt.warnings)


def test_without_a_summary_it_is_never_green(tmp_path: Path) -> None:
    receipt = judged(tmp_path, a_pods_lines(summary=False, gpus=())[-20:], gpus=(), gpu_mode="none")
    assert (receipt.exit_cause.id, receipt.exit_code) == ("evidence-lost", 5)
    assert "never arrived" in receipt.exit_cause.words


def test_a_failure_stays_a_failure(tmp_path: Path) -> None:
    lines = a_pods_lines(summary=False, gpus=(), code=7)[-20:]
    assert judged(tmp_path, lines, State("exited", 7), gpus=(), gpu_mode="none").exit_code == 1


def test_output_that_is_lost_is_counted(tmp_path: Path) -> None:
    lines = a_pods_lines(summary=True, output=30_000)
    receipt = judged(tmp_path, lines, stdout="a line\n" * 4_000)
    assert any("26000 lines of output are in no log" in warning for warning in receipt.warnings), receipt.warnings


def test_output_that_is_whole_is_not_spoken_of(tmp_path: Path) -> None:
    receipt = judged(tmp_path, a_pods_lines(summary=True, output=3), stdout="a\nb\nc\nno line end")
    assert not any("output" in warning for warning in receipt.warnings)


@pytest.mark.parametrize(
    ("code", "id", "exit_code"),
    [(3, "gpu-contract", 3), (7, "evidence-lost", 1), (143, "evidence-lost", 1), (0, "evidence-lost", 5),
     (None, "engine-error", 5)],
)  # fmt: skip
def test_pods_that_are_gone_and_what_the_cluster_says_of_them(
    tmp_path: Path, code: int | None, id: str, exit_code: int
) -> None:
    """Detached, and an operator deleted the pod: its exit code is what is left, in the workload's events."""
    receipt = judged(tmp_path, [], State("exited", code))
    assert (receipt.exit_cause.id, receipt.exit_code) == (id, exit_code), receipt.exit_cause
    if id == "evidence-lost":
        assert f"exit code {code}" in receipt.exit_cause.words


def test_a_run_that_was_deleted_before_anybody_looked(tmp_path: Path) -> None:
    """By k8s cleanup, its TTL or kubectl: whether it had begun, nobody knows any more."""
    receipt = judged(tmp_path, [], State("gone"))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("engine-error", 5)
    assert receipt.exit_cause.words == "k8s no longer knows the run: it was deleted there before its evidence was read"


def later(lines: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The same of another pod, or of the next try."""
    moved = [{**line, "t": line["t"] + seconds} for line in lines]
    return [{**line, "events": later(line["events"], seconds)} if "events" in line else line for line in moved]


def test_an_agent_that_tries_again_repeats_what_it_has_told() -> None:
    """One agent, so its numbers go on, and the second summary has the lines of the first, too."""
    first, second = a_pods_lines(summary=True), later(a_pods_lines(summary=True), 100)
    second = [{**line, "_seq": line["_seq"] + len(first)} for line in second[1:]]
    second[-2]["events"] = [*first[-2]["events"], *({**line} for line in second if line["type"] == "target.started")]
    whole = with_repeated([*first, *second])
    assert len(whole) == len(first) + len(second)
    cut = with_repeated([*first[50:], *second])
    kinds = [event["type"] for event in cut]
    assert (kinds.count("agent.started"), kinds.count("target.started")) == (1, 2)


def test_two_pods_of_a_node_each_with_its_own_summary() -> None:
    first, second = a_pods_lines(summary=True), later(a_pods_lines(summary=True), 100)
    whole = with_repeated([*first[-4:], *second[-2:]])
    assert [event["type"] for event in whole].count("agent.started") == 2
    assert whole[0]["type"] == "agent.started"
    at_second = [n for n, event in enumerate(whole) if event["type"] == "agent.started"][1]
    assert at_second > next(n for n, event in enumerate(whole) if event["type"] == "agent.finished")


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "_seq", "t"]), inner),
    max_leaves=6,
)


_LINE = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["agent.summary", "agent.finished", "sample"]),
        "source": st.sampled_from(["agent", "host", "target"]),
        "events": st.lists(_JUNK, max_size=3),
        "_seq": _JUNK,
        "node": _JUNK,
    }
)


@given(st.lists(_LINE))
def test_no_summary_breaks_a_receipt(events: list[dict[str, Any]]) -> None:
    whole = with_repeated(events)
    kept = [event for event in whole if any(event is one for one in events)]
    assert len(kept) == len(events)

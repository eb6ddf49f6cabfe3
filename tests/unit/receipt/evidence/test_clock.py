"""Clocks of several writers: a host that collects late, nodes whose clocks differ, pods that take another's place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.receipt.clock import on_one_clock
from seatrial.receipt.evidence import gather
from seatrial.receipt.sections.measured import measure

START = 1_795_000_000.0


def line(t: float, type: str = "sample", source: str = "agent", **keys: object) -> dict[str, object]:
    return {"t": START + t, "type": type, "source": source, **keys}


def pod(t: float, *, node: int | None = None, seconds: float = 10.0, code: int = 0) -> list[dict[str, object]]:
    """What an agent writes that starts at ``t`` by its own clock."""
    keys = {} if node is None else {"node": node}
    return [
        line(t, "agent.started", **keys),
        line(t + 0.2, "target.started", **keys),
        *(line(t + second, **keys) for second in range(1, int(seconds))),
        line(t + seconds, "target.exited", exit_code=code, seconds=seconds - 0.2, **keys),
        line(t + seconds, "agent.finished", exit_code=code, **keys),
    ]


LAUNCHED = line(0.0, "host.launched", "host")


def seen(t: float, node: int = 0, name: str = "pod") -> dict[str, object]:
    return line(t, "host.pod", "host", name=name, node=node)


def test_a_host_that_comes_late_is_no_jump() -> None:
    """Detached: 51 s later somebody looks, and the host's words come before the lines of the agent, which has ended."""
    evidence = gather([LAUNCHED, seen(51.0), line(51.2, "note", "host", message="pod is running"), *pod(1.0)])
    assert evidence.jumps == ()
    assert measure(evidence, []).startup_s == pytest.approx(1.2)


def test_two_nodes_collected_one_after_the_other() -> None:
    events = [LAUNCHED, *pod(1.0, node=0, seconds=50.0), seen(51.0), seen(51.1, 1), *pod(1.5, node=1, seconds=50.0)]
    evidence = gather(events)
    assert evidence.jumps == ()
    assert [moment.at_s for moment in evidence.moments] == sorted(moment.at_s for moment in evidence.moments)
    assert evidence.moments[-1].at_s == pytest.approx(51.5)


@pytest.mark.parametrize("ahead_s", [50.0, -50.0, 3600.0, -86400.0])
def test_a_node_whose_clock_is_wrong(ahead_s: float) -> None:
    """The host saw the pod run at 2 s: the agent had started by then, and the launch was before that."""
    evidence = gather([LAUNCHED, seen(2.0), *pod(1.0 + ahead_s)])
    startup_s = measure(evidence, []).startup_s
    assert evidence.jumps == () and startup_s is not None and 0 <= startup_s <= 3
    assert evidence.exited is not None and evidence.exited.at_s <= 13


def test_two_nodes_whose_clocks_differ_by_a_minute() -> None:
    evidence = gather([LAUNCHED, seen(2.0), seen(2.1, 1), *pod(1.0, node=0), *pod(61.0, node=1)])
    assert evidence.jumps == ()
    assert max(moment.at_s for moment in evidence.moments) <= 13


def test_a_pod_that_takes_anothers_place_on_a_node_with_a_clock_of_its_own() -> None:
    events = [LAUNCHED, seen(2.0), *pod(1.0, code=143), seen(15.0, name="pod-2"), *pod(14.0 - 40.0)]
    evidence = gather(events)
    assert evidence.jumps == ()
    assert evidence.exited is not None and evidence.exited.number("exit_code") == 0


def test_hours_in_a_queue_are_no_jump() -> None:
    evidence = gather([LAUNCHED, *pod(7200.0)])
    assert evidence.jumps == () and measure(evidence, []).startup_s == pytest.approx(7200.2)


def test_a_clock_that_was_set_in_the_middle_is_one_jump() -> None:
    lines = pod(1.0)
    set_back = [{**event, "t": float(str(event["t"])) - 50.0} if at > 5 else event for at, event in enumerate(lines)]
    evidence = gather([LAUNCHED, *set_back])
    assert len(evidence.jumps) == 1 and "back by 49 s" in evidence.jumps[0]


_LINES = st.lists(
    st.tuples(
        st.sampled_from(["agent", "host", "target", "", "Agent"]),
        st.sampled_from(["agent.started", "host.pod", "host.launched", "sample", "step"]),
        st.none() | st.floats() | st.text() | st.integers(),
        st.none() | st.integers(-1, 2) | st.text(max_size=2) | st.floats(),
    ),
    max_size=12,
)


@given(_LINES)
def test_nothing_is_lost_whatever_the_lines_say(lines: list[tuple[object, ...]]) -> None:
    events = [{"source": source, "type": type, "t": t, "node": node} for source, type, t, node in lines]
    ordered, elapsed, _ = on_one_clock(events)
    assert sorted(map(id, ordered)) == sorted(map(id, events))
    assert len(elapsed) == len(events) and all(at >= 0 for at in elapsed)

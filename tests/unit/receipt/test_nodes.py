"""Several nodes in one receipt."""

from __future__ import annotations

from seatrial.receipt.evidence import gather
from seatrial.receipt.sections.measured import measure


def _end(t: float, node: int, code: int) -> dict[str, object]:
    return {"t": t, "type": "target.exited", "source": "agent", "node": node, "exit_code": code, "signal": None}


def test_the_first_node_that_failed_tells_why() -> None:
    evidence = gather([_end(10.0, 1, 7), _end(12.0, 0, 1)])
    assert evidence.exited is not None and evidence.exited.number("node") == 1


def test_a_node_that_came_back_has_not_failed() -> None:
    evidence = gather([_end(10.0, 1, 137), _end(20.0, 1, 0), _end(21.0, 0, 0)])
    assert evidence.exited is not None and evidence.exited.number("exit_code") == 0


def test_energy_of_all_nodes() -> None:
    finished = [
        {"t": 1.0, "type": "agent.finished", "source": "agent", "node": 0, "energy_j": {"GPU-a": 5.0}},
        {"t": 2.0, "type": "agent.finished", "source": "agent", "node": 1, "energy_j": {"GPU-b": 7.0}},
    ]
    assert measure(gather(finished), ["GPU-a", "GPU-b"]).energy_j == 12.0

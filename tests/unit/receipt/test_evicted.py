"""Pods that were asked to end from outside: what the receipt says, and that it agrees with the Job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.base import State
from seatrial.receipt.model import Receipt

from .conftest import Scenario, at, prologue, running

SIGTERM = at(10, "signal", signal=15, name="SIGTERM", origin="engine", forwarded_to=[7])
BY_USER = at(9.9, "signal", "host", signal=15, name="SIGTERM", origin="user", forwarded_to=[])


def later(events: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    return [{**event, "t": event["t"] + seconds} for event in events]


def pod(code: int | None, told: int, *, asked: bool = True, signal: int | None = None) -> list[dict[str, Any]]:
    """An agent's life; the target ends with ``code``, the agent with ``told``."""
    exited = {"exit_code": code, "signal": signal, "cause": "signal" if signal else "exited", "seconds": 8}
    end = [at(11, "target.exited", **exited, max_rss_bytes=1, oom_kills=0), at(11.1, "agent.finished", exit_code=told)]
    return prologue()[1:] + running(6) + [SIGTERM] * asked + [{**event, "energy_j": {}} for event in end]


def judged(folder: Path, events: list[dict[str, Any]], state: State, restarts: int = 3) -> Receipt:
    run = Scenario([*prologue()[:1], *events], backend="k8s", state=state, agent={"pod_restarts": restarts})
    return run.judge(folder)


FAILED = State("exited", 143)


@pytest.mark.parametrize(("code", "signal"), [(0, None), (1, None), (None, 15)])
def test_an_evicted_run_is_not_done_whatever_the_target_answered(tmp_path, code, signal):
    receipt = judged(tmp_path, pod(code, 143, signal=signal), FAILED, restarts=0)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("stopped", 1)
    assert ("had not finished" in receipt.exit_cause.words) == (code == 0)


def test_one_that_its_user_stopped_ended_as_asked(tmp_path):
    receipt = judged(tmp_path, [*pod(0, 143), BY_USER], FAILED)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("stopped", 0)
    assert "by the user" in receipt.exit_cause.words


def test_one_that_had_finished_at_that_moment_is_done(tmp_path):
    receipt = judged(tmp_path, pod(0, 0), State("exited", 0))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("finished", 0)


def test_one_that_had_failed_at_that_moment_has_failed(tmp_path):
    receipt = judged(tmp_path, pod(7, 7), State("exited", 7))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("script-error", 1)


def test_another_pod_goes_on_and_finishes(tmp_path):
    receipt = judged(tmp_path, [*pod(0, 143), *later(pod(0, 0, asked=False), 30)], State("exited", 0))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("finished", 0)
    assert not receipt.warnings


def test_three_pods_the_last_of_which_fails_by_itself(tmp_path):
    events = [*pod(0, 143), *later(pod(None, 143, signal=15), 30), *later(pod(5, 5, asked=False), 60)]
    receipt = judged(tmp_path, events, State("exited", 5))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("script-error", 1)


def test_another_pod_goes_on_now(tmp_path):
    events = [*pod(0, 143), *later(prologue()[1:] + running(6), 30)]
    assert judged(tmp_path, events, State("running")).exit_cause.id == "running"


def test_another_pod_goes_on_and_is_lost_without_a_word(tmp_path):
    events = [*pod(0, 143), *later(prologue()[1:] + running(6), 30)]
    receipt = judged(tmp_path, events, State("exited", 137))
    assert (receipt.exit_cause.id, receipt.exit_code) == ("agent-lost", 5)

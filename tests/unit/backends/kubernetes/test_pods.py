"""Which of a node's pods counts."""

from __future__ import annotations

from seatrial.backends.kubernetes.pods import Pod, newest, state_of
from seatrial.job.in_container import EXIT_POD_STOPPED

FINISHED = Pod("run-0-aaaaa", "1", 0, "Succeeded", "2026-11-21T00:00:00Z", started=True, exit_code=0, deleted=True)
AFTER_IT = Pod("run-0-bbbbb", "2", 0, "Failed", "2026-11-21T00:00:02Z", started=True, exit_code=EXIT_POD_STOPPED)


def test_a_pod_that_was_deleted_and_finished_counts_and_not_the_one_made_in_its_place() -> None:
    state = state_of([AFTER_IT, FINISHED], 1, "done")
    assert (state.status, state.exit_code) == ("exited", 0)


def test_a_pod_that_comes_again_replaces_one_that_failed() -> None:
    again = Pod("run-0-ccccc", "3", 0, "Running", "2026-11-21T00:00:04Z", started=True)
    assert newest([again, AFTER_IT], 1) == {0: again}

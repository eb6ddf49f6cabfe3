"""A trial as Ray Tune sees it: it starts a run on its node, passes reports on, and ends the run when it is stopped."""

from __future__ import annotations

import json
import os
from typing import Any

import ray
from ray import tune

from seatrial.search.on_ray.following import Following, start_process
from seatrial.search.on_ray.project import Mark, unpack_project

#: The result's keys: the objective's value, how many were reported so far, and whether the run has ended by itself;
#: Ray sets ``done`` where it stops a trial, too.
OBJECTIVE = "objective"
REPORTS = "reports"
ENDED = "ended"

#: A step returns so often at least: only between two steps can Ray stop a trial.
_STEP_S = 1.0

#: Variables that Ray sets in its workers, and a run is not to have.
_RAYS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")


class RunTrial(tune.Trainable):  # type: ignore[misc]  # ray has no types here
    """``config["order"]`` is what node_run.py wants to know, as JSON.

    A worker takes one trial after the other (reuse_actors): to start one takes seconds.
    """

    def setup(self, config: dict[str, Any], **given: Any) -> None:
        """Nothing is started yet: Ray may make a worker for one trial and use it for another.

        Args:
            given: ``mailbox``; ``mark`` of the searcher's disk; ``project``: its files packed; ``name`` of its folder.
        """
        self._mailbox = given["mailbox"]
        mark: Mark = given["mark"]
        shared = mark.is_seen()
        folder = mark.project if shared else str(unpack_project(given["project"], given["name"], _environ()))
        gpus = [str(one) for one in ray.get_gpu_ids()]
        self._here = {"project": folder, "gather": not shared, "gpus": gpus}
        self._order = {**json.loads(config["order"]), **self._here}
        self._run: Following | None = None
        self._next = start_process(_environ())

    def step(self) -> dict[str, Any]:
        """Start the run, the first time. The newest report; ``done`` with the run's end."""
        if self._run is None:
            self._run = Following(self._order, self._mailbox, self._next)
            self._next = start_process(_environ())  # for the next trial, which finds it ready
        self._run.wait(_STEP_S)
        ended = self._run.ended
        result: dict[str, Any] = {"done": ended, ENDED: ended, REPORTS: self._run.reports}
        if self._run.value is not None:
            result[OBJECTIVE] = self._run.value
        return result

    def cleanup(self) -> None:
        """This worker is done: the run ends first."""
        self._end()
        self._next.commands.close()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial."""
        self._end()
        self._order, self._run = {**json.loads(new_config["order"]), **self._here}, None
        return True

    def _end(self) -> None:
        """Stopped by the scheduler, or because the search is over."""
        if self._run is not None:
            self._run.end()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the study has all that is known."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing."""


def _environ() -> dict[str, str]:
    """This worker's, without what Ray has put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in _RAYS}

"""run_trials: a search's trials by Ray Tune. This process has the study; the nodes have the runs."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import EngineError, SeatrialError
from seatrial.runs.finalise import finalise
from seatrial.runs.store import RunStore
from seatrial.search.endings import ending_of
from seatrial.search.local import tell
from seatrial.search.on_ray.cluster import Needs, check_nodes, connect, needs_of, nodes
from seatrial.search.on_ray.gathering import unpack_run
from seatrial.search.on_ray.project import make_mark, pack_project
from seatrial.search.search import Search
from seatrial.search.trial import Ending, Trial

#: How often the mailbox is looked at, and the terminal's line is drawn anew.
_LOOK_S = 0.2

#: Beyond a run's grace period: its receipt, its files on their way.
_LAST_S = 120.0

#: No loggers, no copy of the search on the disk every few seconds, our own way with Ctrl-C: the study has it all.
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_trials(search: Search) -> None:
    """Ask, run and tell until there are no more."""
    connect(search.address)
    import ray

    try:
        found = nodes()
        needs = needs_of(search.job, found)
        check_nodes(found, needs, search.job)
        able = [node for node in found if needs.fit(node)]
        room = search.parallel or sum(map(needs.room, able))
        search.say(f"Ray: {len(able)} of {len(found)} nodes can take trials: {', '.join(each.words for each in able)}")
        take_back(search)
        with tempfile.TemporaryDirectory(prefix="seatrial-ray-") as folder:
            OnRay(search, needs, room, Path(folder), {node.id: node.words for node in found}).run()
    finally:
        ray.shutdown()


def take_back(search: Search) -> None:
    """Trials of a searcher that has gone: what ended well is told, the rest runs again."""
    for trial in search.study.take_lost():
        run = RunStore(search.job.project, search.environ).run(trial.run_id or "-")
        receipt = finalise(run, search.environ) if run.folder.is_dir() else None
        ending = None if receipt is None else ending_of(receipt, search.objective)
        if ending is not None and ending.state == "done" and (ending.value is not None or search.objective is None):
            tell(search, trial, ending)
        else:
            search.say(f"trial {trial.number}: its searcher has gone; it runs again")
            search.study.again(trial.number)


@dataclass
class OnRay:
    """One search at work on a cluster.

    Attributes:
        room: trials at once.
        folder: where archives of runs arrive. nodes: a node's ID → what it is called.
        begun: numbers of the trials that Ray was given. started: of those that a node has begun with. ended: of those
            that have told their end.
    """

    search: Search
    needs: Needs
    room: int
    folder: Path
    nodes: dict[str, str]
    begun: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    failure: BaseException | None = None

    def run(self) -> None:
        """Ray Tune in a thread of its own; this one takes messages and draws."""
        self._mailbox = self._make_mailbox()
        mark = make_mark(self.search.job.project, self.search.environ)
        try:
            tuner = self._tuner(mark)
            tuning = threading.Thread(target=self._fit, args=(tuner,), daemon=True)
            tuning.start()
            over = False
            while tuning.is_alive():
                over = self._tell_over(over)
                self._serve()
                time.sleep(_LOOK_S)
            self._wait_for_the_last()
        finally:
            Path(mark.path).unlink(missing_ok=True)
        if self.failure is not None and self.search.problem is None and not self.search.interrupted:
            told = str(self.failure).strip().splitlines() or [type(self.failure).__name__]
            self.search.end(EngineError(f"Ray Tune ended the search: {told[-1][:300]}", run="ray status"))

    def _make_mailbox(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from seatrial.search.on_ray.mailbox import Mailbox

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote(str(self.folder))

    def _tuner(self, mark: Any) -> Any:
        # Trials whose worker is still starting; Ray's default of one would leave the others to the first node's worker.
        settings = {**_QUIET, "TUNE_MAX_PENDING_TRIALS_PG": str(self.room)}
        os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
        from ray import tune

        from seatrial.search.on_ray.searcher import Over, StudySearcher, scheduler
        from seatrial.search.on_ray.trainable import RunTrial

        search, project = self.search, self.search.job.project
        given = {"mailbox": self._mailbox, "mark": mark, "project": pack_project(project), "name": project.name}
        trainable = tune.with_resources(tune.with_parameters(RunTrial, **given), dict(self.needs.resources))
        return tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=StudySearcher(search, self.begun, self._mailbox),
                scheduler=scheduler(search),
                reuse_actors=True,
                num_samples=-1,
                max_concurrent_trials=self.room,
            ),
            run_config=tune.RunConfig(
                name=search.study.definition.name,
                storage_path=str(self.folder / "tune"),
                stop=Over(search),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )

    def _fit(self, tuner: Any) -> None:
        try:
            tuner.fit()
        except BaseException as error:  # noqa: BLE001  # told in the main thread
            self.failure = error

    def _tell_over(self, told: bool) -> bool:
        """Trials ask the mailbox why they are stopped."""
        stop = ("kill", None) if self.search.killed.is_set() else None if told else self.search.why_stop()
        if stop is not None:
            self._mailbox.end.remote(*stop)
        return told or stop is not None

    def _serve(self) -> None:
        import ray

        for number, message in ray.get(self._mailbox.take.remote()):
            self._hear(number, message)
            self.started.add(number)
            if message["kind"] in ("end", "problem", "again"):
                self.ended.add(number)
        self.search.look()

    def _wait_for_the_last(self) -> None:
        """Trials that were stopped end after Ray Tune has."""
        until = time.monotonic() + self.search.job.grace_s + _LAST_S
        self._serve()
        while self.ended != self.started and time.monotonic() < until:
            self._tell_over(True)
            self._serve()
            time.sleep(_LOOK_S)
        self._serve()
        for number in self.begun - self.ended:
            self.search.study.again(number)

    def _hear(self, number: int, message: Mapping[str, Any]) -> None:
        search, kind = self.search, message["kind"]
        if kind == "begin":
            search.study.begin(number, message["run_id"])
            search.say(f"trial {number}: run {message['run_id']} on {self._node(message)}")
        elif kind == "report":
            search.study.report(number, message["step"], message["value"])
        elif kind == "again":
            search.study.again(number)
        elif kind == "problem":
            self._hear_problem(number, message)
        elif kind == "end":
            self._hear_end(number, message)

    def _hear_end(self, number: int, message: Mapping[str, Any]) -> None:
        search = self.search
        archive = self.folder / f"{message['run_id']}.tar"
        if message["archive"] is not None and archive.exists():
            try:
                unpack_run(archive, RunStore(search.job.project, search.environ).run(message["run_id"]))
            except SeatrialError as error:
                search.say(f"trial {number}: {error.message}")
            archive.unlink()
        tell(search, self._trial(number), Ending(**message["ending"]))

    def _hear_problem(self, number: int, message: Mapping[str, Any]) -> None:
        """What keeps the first trial from starting keeps them all; later it is this one's failure."""
        search = self.search
        words = f"{message['message']} (on {self._node(message)})"
        if any(one.state in ("done", "pruned") for one in search.study.trials()):
            tell(search, self._trial(number), Ending("failed", outcome=words, exit_code=message["exit_code"]))
            return
        search.study.again(number)
        problem = SeatrialError(words, cause=message["cause"], run=message["run"])
        problem.exit_code = message["exit_code"]
        search.end(problem)

    def _node(self, message: Mapping[str, Any]) -> str:
        return self.nodes.get(message["node"], "a node that came later")

    def _trial(self, number: int) -> Trial:
        return self.search.study.trials()[number]

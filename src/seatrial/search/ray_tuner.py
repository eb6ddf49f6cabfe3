"""Run a search's trials by Ray Tune: this process has the study, each trial is a run on a node of the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Stopper
from ray.tune.search import Searcher

from seatrial.errors import EngineError, SeatrialError
from seatrial.runs.finish import finalise
from seatrial.runs.store import RunStore
from seatrial.search.metrics import ending_of
from seatrial.search.ray_cluster import Needs, check_nodes, connect, needs_of, nodes
from seatrial.search.runner import tell
from seatrial.search.search import Search
from seatrial.search.trial import Ending, Trial
from seatrial.system.command import dialogue

#: How often the terminal's line is drawn anew, and a trial's worker looks whether it is to end.
_LOOK_S = 0.2

#: A step returns so often at least: only between two steps can Ray stop a trial.
_STEP_S = 1.0

#: Variables that Ray sets in its workers, and a run is not to have.
_RAYS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")

#: No loggers, no copy of the search on the disk every few seconds, our own way with Ctrl-C: the study has it all.
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "RAY_AIR_NEW_OUTPUT": "0",
}

_LAST = ("end", "problem", "again")


class Reasons:
    """An actor with the reasons why trials are to end, by number; of all at None."""

    def __init__(self) -> None:
        self._reasons: dict[int | None, tuple[str, str | None]] = {}

    def put(self, number: int | None, origin: str, why: str | None) -> None:
        self._reasons[number] = (origin, why)

    def get(self, number: int) -> tuple[str, str | None] | None:
        return self._reasons.get(None) or self._reasons.get(number)


class RunTrial(tune.Trainable):  # type: ignore[misc]  # ray has no types here
    """A trial on its node: it starts a run, passes its messages on, and ends the run when Tune stops it.

    ``config["order"]`` is JSON for ray_node.py. A worker takes one trial after the other: to start one takes seconds.
    """

    def setup(self, config: dict[str, Any], *, reasons: Any, project: str | None) -> None:
        """``project``: the folder on every node; None for the working directory that Ray has copied here."""
        self._reasons = reasons
        gpus = [str(one) for one in ray.get_gpu_ids()]
        node = ray.get_runtime_context().get_node_id()
        self._here = {"project": project or str(Path.cwd()), "copied": project is None, "gpus": gpus, "node": node}
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial; the one before ends first."""
        self.cleanup()
        self._order: dict[str, Any] = {**json.loads(new_config["order"]), **self._here}
        self._commands: Any = None
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ended = threading.Event()
        return True

    def step(self) -> dict[str, Any]:
        """Start the run, the first time; return its messages of a second, and ``done`` with its end."""
        if self._commands is None:
            env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", *_RAYS))}
            process = dialogue([sys.executable, "-m", "seatrial.search.ray_node"], env)
            self._commands = process.commands
            self._send(self._order)
            threading.Thread(target=self._read, args=(process.lines, self._ended), daemon=True).start()
        lines = []
        with contextlib.suppress(queue.Empty):
            lines.append(self._lines.get(timeout=_STEP_S))
            while True:
                lines.append(self._lines.get_nowait())
        done = any(line["kind"] in _LAST for line in lines)
        return {"done": done, "lines": json.dumps(lines), "node": self._here["node"]}

    def cleanup(self) -> None:
        """End the run if it lives, for the reason that the searcher gives, and wait: its GPUs are free then."""
        sent = None
        while getattr(self, "_commands", None) is not None and not self._ended.wait(_LOOK_S):
            reason = ray.get(self._reasons.get.remote(self._order["number"])) or ("search", "Ray stopped the trial")
            if reason != sent:
                sent = reason
                self._send({"origin": reason[0], "why": reason[1]})

    def _read(self, lines: Any, ended: threading.Event) -> None:
        last = None
        for text in lines:
            self._lines.put(line := json.loads(text))
            last = line["kind"]
            if last in _LAST:
                break
        if last not in _LAST:
            self._lines.put({"kind": "problem", "message": "The process that follows the run was killed"})
        ended.set()
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._commands.write(json.dumps(command) + "\n")
            self._commands.flush()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The study has everything."""

    load_checkpoint = save_checkpoint


def run_trials(search: Search) -> None:
    """Run trials until there are no more."""
    connect(search.address)
    store = RunStore(search.job.project, search.host)
    store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = store.record / f"ray-{secrets.token_hex(4)}"
    mark.write_text(secrets.token_hex(16))
    try:
        found = nodes()
        needs = needs_of(search.job, found)
        seen = check_nodes(found, needs, search.job, (str(mark), mark.read_text()))
        if not seen:  # Ray copies the project to its nodes
            ray.shutdown()
            connect(search.address, upload=store.project)
        able = [node for node in found if needs.room(node)]
        search.say(f"Ray: {len(able)} of {len(found)} nodes can take trials: {', '.join(each.name for each in able)}")
        _take_back(search, store)
        room = search.parallel or sum(map(needs.room, able))
        _Driver(search, store, {node.id: node.name for node in found}).fit(needs, room, shared=seen)
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def _take_back(search: Search, store: RunStore) -> None:
    """Take over the trials of a searcher that has gone: those that ended well are told, the rest runs again."""
    for trial in search.study.take_lost():
        run = store.run(trial.run_id or "-")
        receipt = finalise(run, search.host) if run.folder.is_dir() else None
        ending = None if receipt is None else ending_of(receipt, search.objective)
        if ending is not None and ending.state == "done" and (ending.value is not None or search.objective is None):
            tell(search, trial, ending)
        else:
            search.say(f"trial {trial.number}: its searcher has gone; it runs again")
            search.study.again(trial.number)


class _Driver(Searcher, Stopper):  # type: ignore[misc]
    """One search on a cluster: names trials to Tune, takes their messages, and stops the one that falls behind.

    The study, which Optuna chooses for, is what a later searcher goes on from. Messages arrive in Tune's thread.
    """

    def __init__(self, search: Search, store: RunStore, names: Mapping[str, str]) -> None:
        super().__init__()
        self.search, self._store, self._names = search, store, names
        self._numbers: dict[str, int] = {}
        self._told: set[int] = set()
        self._reasons = ray.remote(Reasons).options(num_cpus=0).remote()
        self._failure: BaseException | None = None

    def fit(self, needs: Needs, room: int, *, shared: bool) -> None:
        """Run Tune in a thread of its own; this one draws, and passes the user's wish to end on."""
        with tempfile.TemporaryDirectory(prefix="seatrial-ray-") as folder:
            tuner = self._tuner(needs, room, folder, shared=shared)
            tuning = threading.Thread(target=self._fit, args=(tuner,), daemon=True)
            tuning.start()
            while tuning.is_alive():
                stop = ("kill", None) if self.search.killed.is_set() else self.search.why_stop()
                if stop is not None:
                    self._reasons.put.remote(None, *stop)
                self.search.tick()
                time.sleep(_LOOK_S)
        for number in set(self._numbers.values()) - self._told:
            self._not_told(self.search.study.trial(number))
        if self._failure is not None and self.search.problem is None and not self.search.interrupted:
            words = str(self._failure).strip().splitlines() or [type(self._failure).__name__]
            self.search.end(EngineError(f"Ray Tune ended the search: {words[-1][:300]}", run="ray status"))

    def _tuner(self, needs: Needs, room: int, folder: str, *, shared: bool) -> Any:
        # Trials whose worker is still starting; Ray's default of one would leave the others to the first node's worker.
        settings = {**_QUIET, "TUNE_MAX_PENDING_TRIALS_PG": str(room)}
        os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
        given = {"reasons": self._reasons, "project": str(self._store.project) if shared else None}
        return tune.Tuner(
            tune.with_resources(tune.with_parameters(RunTrial, **given), dict(needs.resources)),
            tune_config=tune.TuneConfig(search_alg=self, reuse_actors=True, num_samples=-1, max_concurrent_trials=room),
            run_config=tune.RunConfig(
                name=self.search.study.definition.name,
                storage_path=folder,
                stop=self,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )

    def _fit(self, tuner: Any) -> None:
        try:
            tuner.fit()
        except BaseException as error:  # noqa: BLE001  # raised in the main thread
            self._failure = error

    def _not_told(self, trial: Trial) -> None:
        """End a trial whose last message did not come: stopped, or its worker died."""
        stop = self.search.why_stop()
        if stop is not None and trial.run_id is not None:
            words = "stopped by the user" if stop[0] == "user" else f"stopped by the search: {stop[1]}"
            tell(self.search, trial, Ending("stopped", value=trial.value, outcome=words))
        else:
            self.search.study.again(trial.number)

    def _hear(self, number: int, message: Mapping[str, Any], node: str) -> bool:
        """Take a trial's message; return whether the trial is to be stopped."""
        search, kind = self.search, message["kind"]
        if kind == "say":
            search.say(message["line"])
        elif number in self._told:
            return False
        elif kind == "begin":
            search.study.begin(number, message["run_id"])
            search.say(f"trial {number}: run {message['run_id']} on {self._names.get(node, 'a node that came later')}")
        elif kind == "report":
            trial = search.study.trial(number)
            if (why := search.report(trial, message["step"], message["value"])) is not None:
                ray.get(self._reasons.put.remote(number, "pruner", why))
                self._told.add(number)
                tell(search, trial, Ending("pruned", value=message["value"], outcome=f"Pruned: {why}"))
                return True
        elif kind == "end":
            self._told.add(number)
            self._keep(message)
            tell(search, search.study.trial(number), Ending(**message["ending"]))
        elif kind == "problem":
            self._told.add(number)
            self._problem(number, message, node)
        return False

    def _keep(self, message: Mapping[str, Any]) -> None:
        """Write the receipt of a run on another disk into this machine's record of it."""
        run = self._store.run(message["run_id"])
        for name, text in message["files"].items():
            run.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (run.folder / Path(name).name).write_text(text)
        if message["files"]:
            run.place.mkdir(parents=True, exist_ok=True)
            run.show_receipt()

    def _problem(self, number: int, message: Mapping[str, Any], node: str) -> None:
        """End the search if its first trial cannot start; later it is this trial's failure."""
        search, words = self.search, f"{message['message']} (on {self._names.get(node, 'a node')})"
        if any(one.state in ("done", "pruned") for one in search.study.trials()):
            ending = Ending("failed", outcome=words, exit_code=message.get("exit_code", 5))
            tell(search, search.study.trial(number), ending)
            return
        search.study.again(number)
        problem = SeatrialError(words, cause=message.get("cause"), run=message.get("run"))
        problem.exit_code = message.get("exit_code", 5)
        search.end(problem)

    def suggest(self, trial_id: str) -> Any:
        search, objective = self.search, self.search.objective
        trial = search.ask()
        if trial is None:
            return Searcher.FINISHED
        self._numbers[trial_id] = trial.number
        order = {
            "job": search.job_of(trial).model_dump_json(),
            "number": trial.number,
            "settings": trial.settings,
            "objective": None if objective is None else [objective.metric, objective.direction, objective.pattern],
            "series": search.study.get("series"),
        }
        return {"order": json.dumps(order)}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take the messages of a result; return whether its trial is to be stopped."""
        stop = False
        for message in json.loads(result.get("lines", "[]")):
            stop = self._hear(self._numbers[trial_id], message, result["node"]) or stop
        return stop

    def stop_all(self) -> bool:
        return self.search.time_is_over()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Its last message has ended it."""

    def save(self, checkpoint_path: str) -> None:
        """The study has everything."""

    restore = save

    def __reduce__(self) -> Any:
        """Stand for nothing in Ray's copy of the search on the disk."""
        return dict, ()

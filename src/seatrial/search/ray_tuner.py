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
from seatrial.runs.run import PLACE_FOLDER
from seatrial.runs.status import finalise
from seatrial.runs.store import RunStore
from seatrial.search.metrics import ending_of
from seatrial.search.ray_cluster import check_nodes, connect, needs_of, nodes_of_cluster
from seatrial.search.search import Search
from seatrial.search.trial import Ending, Trial
from seatrial.system import nofollow
from seatrial.system.command import dialogue

#: Interval between updates of the terminal's line, and between a worker's checks whether its trial is to end.
_LOOK_S = 0.2
#: Longest duration of a step: Ray can stop a trial only between two steps.
_STEP_S = 1.0
#: Variables that Ray sets in its workers and that a run must not inherit.
_RAY_VARIABLES = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")

#: The study replaces Ray's loggers and its copy of the search; Ctrl-C is handled by the command line.
_TUNE_VARIABLES = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "RAY_AIR_NEW_OUTPUT": "0",
}

#: Kinds of the last message of a trial.
_LAST = ("end", "problem", "again")


class StopReasons:
    """Actor that keeps why each trial is to end, by number; None is the key for all of them."""

    def __init__(self) -> None:
        self._reasons: dict[int | None, tuple[str, str | None]] = {}

    def put(self, number: int | None, origin: str, why: str | None) -> None:
        self._reasons[number] = (origin, why)

    def get(self, number: int) -> tuple[str, str | None] | None:
        return self._reasons.get(None) or self._reasons.get(number)


class RunTrial(tune.Trainable):  # type: ignore[misc]  # ray has no types here
    """Run trials on a node by ``config["order"]``, JSON for ray_cluster.run_trial; reused, as a start takes seconds."""

    def setup(self, config: dict[str, Any], *, reasons: Any, project: str | None) -> None:
        """Keep the facts of this node. ``project`` is None if Ray has copied it into the working directory."""
        self._reasons = reasons
        gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
        node = ray.get_runtime_context().get_node_id()
        self._here = {"project": project or str(Path.cwd()), "copied": project is None, "gpus": gpus, "node": node}
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial; the one before ends first."""
        self.cleanup()
        self._order: dict[str, Any] = {**json.loads(new_config["order"]), **self._here}
        self._commands: Any = None
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ended = threading.Event()
        return True

    def step(self) -> dict[str, Any]:
        """Start the run, the first time; return its messages of a second, and ``done`` with the last."""
        if self._commands is None:
            env = {key: value for key, value in os.environ.items() if not key.startswith(_RAY_VARIABLES)}
            self._commands, lines = dialogue([sys.executable, "-m", "seatrial.search.ray_cluster"], env)
            self._send(self._order)
            threading.Thread(target=self._read, args=(lines, self._ended), daemon=True).start()
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=_STEP_S))
            while True:
                messages.append(self._messages.get_nowait())
        done = any(message["kind"] in _LAST for message in messages)
        return {"done": done, "messages": json.dumps(messages), "node": self._here["node"]}

    def cleanup(self) -> None:
        """End the run if it is alive, for the searcher's reason, and wait until its GPUs are free."""
        sent = None
        while getattr(self, "_commands", None) is not None and not self._ended.wait(_LOOK_S):
            reason = ray.get(self._reasons.get.remote(self._order["number"])) or ("search", "Ray stopped the trial")
            if reason != sent:
                sent = reason
                self._send({"origin": reason[0], "why": reason[1]})

    def _read(self, lines: Any, ended: threading.Event) -> None:
        for text in lines:
            self._messages.put(message := json.loads(text))
            if message["kind"] in _LAST:
                break
        else:
            self._messages.put({"kind": "problem", "message": "The process that follows the run was killed"})
        ended.set()
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._commands.write(json.dumps(command) + "\n")
            self._commands.flush()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: the study has everything."""

    load_checkpoint = save_checkpoint


def run_trials(search: Search) -> None:
    """Run trials until none are left."""
    connect(search.address)
    store = RunStore(search.job.project, search.host)
    store.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    marker = store.record / f"ray-{secrets.token_hex(4)}"
    marker.write_text(secrets.token_hex(16))
    try:
        nodes = nodes_of_cluster()
        needs = needs_of(search.job, nodes)
        able = [node for node in nodes if node.capacity(needs)]
        shared = check_nodes(able, search.job, "GPU" in needs, marker)
        if not shared:  # Ray copies the project to its nodes
            ray.shutdown()
            connect(search.address, upload=store.project)
        search.note(f"Ray: {len(able)} of {len(nodes)} nodes can take trials: {', '.join(node.name for node in able)}")
        _adopt_lost(search, store)
        parallel = search.parallel or sum(node.capacity(needs) for node in able)
        _Driver(search, store, {node.id: node.name for node in nodes}).fit(needs, parallel, shared=shared)
    finally:
        marker.unlink(missing_ok=True)
        ray.shutdown()


def _adopt_lost(search: Search, store: RunStore) -> None:
    """Take over the trials of a searcher that has gone: record those that ended well, and run the rest again."""
    for trial in search.study.take_lost():
        run = store.run(trial.run_id or "-")
        receipt = finalise(run, search.host) if run.folder.is_dir() else None
        ending = None if receipt is None else ending_of(receipt, search.objective)
        if ending is not None and ending.state == "done" and (ending.value is not None or search.objective is None):
            search.end_trial(trial, ending)
        else:
            search.note(f"trial {trial.number}: its searcher has gone; it runs again")
            search.study.again(trial.number)


class _Driver(Searcher, Stopper):  # type: ignore[misc]
    """One search on a cluster: names trials to Tune, takes their messages, and stops the one that falls behind.

    Messages arrive in Tune's thread. A later searcher goes on from the study, not from Tune's state.
    """

    def __init__(self, search: Search, store: RunStore, names: Mapping[str, str]) -> None:
        super().__init__()
        self.search, self._store, self._names = search, store, names
        self._numbers: dict[str, int] = {}
        self._ended: set[int] = set()
        self._reasons = ray.remote(StopReasons).options(num_cpus=0).remote()
        self._failure: BaseException | None = None

    def fit(self, needs: Mapping[str, float], parallel: int, *, shared: bool) -> None:
        """Run Tune in a thread of its own; this one draws, and passes on the user's wish to end."""
        with tempfile.TemporaryDirectory(prefix="seatrial-ray-") as folder:
            tuner = self._tuner(needs, parallel, folder, shared=shared)
            tuning = threading.Thread(target=self._fit, args=(tuner,), daemon=True)
            tuning.start()
            while tuning.is_alive():
                stop = ("kill", None) if self.search.killed.is_set() else self.search.why_stop()
                if stop is not None:
                    self._reasons.put.remote(None, *stop)
                self.search.tick()
                time.sleep(_LOOK_S)
        for number in set(self._numbers.values()) - self._ended:
            self._end_silent(self.search.study.trial(number))
        if self._failure is not None and self.search.problem is None and not self.search.interrupted:
            lines = str(self._failure).strip().splitlines() or [type(self._failure).__name__]
            self.search.end(EngineError(f"Ray Tune ended the search: {lines[-1][:300]}", run="ray status"))

    def _tuner(self, needs: Mapping[str, float], parallel: int, folder: str, *, shared: bool) -> Any:
        # Ray's default of one pending trial would make the others wait for the first node's worker.
        for name, value in {**_TUNE_VARIABLES, "TUNE_MAX_PENDING_TRIALS_PG": str(parallel)}.items():
            os.environ.setdefault(name, value)
        given = {"reasons": self._reasons, "project": str(self._store.project) if shared else None}
        return tune.Tuner(
            tune.with_resources(tune.with_parameters(RunTrial, **given), dict(needs)),
            tune_config=tune.TuneConfig(
                search_alg=self, reuse_actors=True, num_samples=-1, max_concurrent_trials=parallel
            ),
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

    def _end_silent(self, trial: Trial) -> None:
        """End a trial whose last message did not come: it was stopped, or its worker died."""
        stop = self.search.why_stop()
        if stop is not None and trial.run_id is not None:
            outcome = "stopped by the user" if stop[0] == "user" else f"stopped by the search: {stop[1]}"
            self.search.end_trial(trial, Ending("stopped", value=trial.value, outcome=outcome))
        else:
            self.search.study.again(trial.number)

    def _take(self, number: int, message: Mapping[str, Any], node: str) -> bool:
        """Take a trial's message; return True if the trial is to be stopped."""
        search, kind = self.search, message["kind"]
        if kind == "note":
            search.note(message["line"])
        elif number in self._ended:
            return False
        elif kind == "begin":
            search.study.begin(number, message["run_id"])
            search.note(f"trial {number}: run {message['run_id']} on {self._names.get(node, 'a node that came later')}")
        elif kind == "report":
            trial = search.study.trial(number)
            if (why := search.report(trial, message["step"], message["value"])) is not None:
                ray.get(self._reasons.put.remote(number, "pruner", why))
                self._ended.add(number)
                search.end_trial(trial, Ending("pruned", value=message["value"], outcome=f"Pruned: {why}"))
                return True
        elif kind == "end":
            self._ended.add(number)
            self._keep_files(message)
            search.end_trial(search.study.trial(number), Ending(**message["ending"]))
        elif kind == "problem":
            self._ended.add(number)
            problem = f"{message['message']} (on {self._names.get(node, 'a node')})"
            error = SeatrialError(problem, cause=message.get("cause"), run=message.get("run"))
            error.exit_code = message.get("exit_code", 5)
            search.not_started(search.study.trial(number), error)
        return False

    def _keep_files(self, message: Mapping[str, Any]) -> None:
        """Write the receipt of a run on another disk into this machine's record of it."""
        run = self._store.run(message["run_id"])
        for name, text in message["files"].items():
            run.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (run.folder / Path(name).name).write_text(text)
        if message["files"]:
            with nofollow.folder(self._store.project, *PLACE_FOLDER, run.id, make=True):
                run.show_receipt()

    def suggest(self, trial_id: str) -> Any:
        search, objective = self.search, self.search.objective
        if (trial := search.ask()) is None:
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
        """Take the messages of a result; return True if its trial is to be stopped."""
        number = self._numbers[trial_id]
        stops = [self._take(number, message, result["node"]) for message in json.loads(result.get("messages", "[]"))]
        return any(stops)

    def stop_all(self) -> bool:
        return self.search.time_is_over()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: the trial's last message has ended it."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the study has everything."""

    restore = save

    def __reduce__(self) -> Any:
        """Return an empty stand-in for Ray's copy of the search on the disk."""
        return dict, ()

"""Processes of trials to come, started while the present trial sets itself up, and stopped while it measures.

What a script imports takes as long as the rest of a trial. A process that was started ahead has done it, and waits
(hook/wait_for_trial.py) until it is told what to try. While a trial measures, all that were started ahead are stopped
(SIGSTOP).
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Set

from seatrial.agent.tune.spec import Spec

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)

#: Trackers in trials keep to themselves: a dozen runs of seventy steps are of no use to anybody.
_QUIET = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}

#: Cores from which on one process, or two, are started ahead: on fewer they would take them from the trial.
_CORES_FOR_ONE, _CORES_FOR_TWO = 4, 8

#: A process that has imported torch and more holds so much memory; as much again is left to the trial.
_FREE_BYTES = 6 << 30


class Started(NamedTuple):
    """A process that will be a trial, or is one."""

    folder: str
    process: "subprocess.Popen[bytes]"

    @property
    def events(self) -> str:
        return os.path.join(self.folder, "events.jsonl")

    @property
    def output(self) -> str:
        return os.path.join(self.folder, "output.log")

    @property
    def measures(self) -> bool:
        """Whether its measured steps have begun."""
        return os.path.exists(self.events + ".measuring")

    @property
    def held(self) -> Optional[Dict[str, Any]]:
        """What it told when it had imported all; None before. ``clean``: it had done nothing but import."""
        try:
            with open(os.path.join(self.folder, "held.json"), encoding="utf-8") as file:
                told = json.load(file)
            return told if isinstance(told, dict) else None
        except (OSError, ValueError):
            return None


class Ahead:
    """Starts processes, and keeps those that were started ahead.

    Args:
        most: processes started ahead at a time; 0 for none.
    """

    def __init__(self, spec: Spec, most: int) -> None:
        self._spec, self._most = spec, most
        self._waiting: List[Started] = []
        self._count = 0
        self._stopped = False
        self._may = False  # until a trial has shown that nothing but imports comes before the place where it waits

    def take(self, told: Dict[str, Optional[str]]) -> Started:
        """A process that is now a trial: the first of those that wait, or a new one.

        Args:
            told: variable → value, or None for none; what the trial is.
        """
        self.go_on()
        while self._waiting:
            started = self._waiting.pop(0)
            if started.process.poll() is None:
                break
            self._remove(started)
            self._may = False  # what ends before it is told to go on is better started when it is wanted
        else:
            started = self._start()
        path = os.path.join(started.folder, "release.json")
        with open(path + ".aside", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(path + ".aside", path)
        return started

    def look(self, now: Started) -> None:
        """Called again and again while ``now`` runs: start what is missing, stop all while it measures."""
        if not self._may and self._most:
            self._may = bool((now.held or {}).get("clean"))
        if now.measures:
            self._stop()
            return
        if not self._may or len(self._waiting) >= self._most:
            return
        if not self._waiting or self._waiting[-1].held is not None:  # one after the other
            self._waiting.append(self._start())

    @property
    def sessions(self) -> Set[int]:
        """Of processes that are no part of the present trial."""
        return {each.process.pid for each in self._waiting}

    def end(self) -> None:
        """No more trials: nothing is left."""
        while self._waiting:
            started = self._waiting.pop()
            _signal(started, signal.SIGKILL)
            try:
                started.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            self._remove(started)

    def _start(self) -> Started:
        """Its group and session are its own, and it dies with this process."""
        self._count += 1
        folder = os.path.join(self._spec.folder, "%02d" % self._count)
        os.makedirs(folder, exist_ok=True)
        env = dict(os.environ, **_QUIET)
        env.setdefault("MLFLOW_TRACKING_URI", "file:" + os.path.join(folder, "mlruns"))
        env["TENSORBOARD_LOGGING_DIR"] = os.path.join(folder, "tensorboard")
        env["SEATRIAL_EVENTS"] = os.path.join(folder, "events.jsonl")
        env["SEATRIAL_TRIAL"] = "{}"
        env["SEATRIAL_HOLD"] = json.dumps({"folder": folder, "driver": os.getpid()})
        env.pop("SEATRIAL_TUNE", None)
        libc, driver = ctypes.CDLL(None), os.getpid()

        def die_with_driver() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != driver:
                os._exit(1)

        with open(os.path.join(folder, "output.log"), "wb") as output:
            process = subprocess.Popen(
                self._spec.argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_driver,
            )
        return Started(folder, process)

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for each in self._waiting:
                _signal(each, signal.SIGSTOP)

    def go_on(self) -> None:
        """Nothing is measured any more."""
        if self._stopped:
            self._stopped = False
            for each in self._waiting:
                _signal(each, signal.SIGCONT)

    @staticmethod
    def _remove(started: Started) -> None:
        shutil.rmtree(started.folder, ignore_errors=True)


def how_many(cores: int, free_bytes: Optional[int]) -> int:
    """Processes to start ahead where a trial has so many cores; ``free_bytes``: None where nobody knows."""
    if cores < _CORES_FOR_ONE or (free_bytes is not None and free_bytes < _FREE_BYTES):
        return 0
    return 1 if cores < _CORES_FOR_TWO else 2


def _signal(started: Started, number: int) -> None:
    """To its whole group: what its imports have started, too."""
    try:
        os.killpg(started.process.pid, number)
    except OSError:
        pass

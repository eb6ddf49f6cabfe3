"""Following one run from a Ray worker: its reports come here, and the searcher's wish to end it goes there."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

import ray

from seatrial.system.command import Dialogue, dialogue

#: How often the searcher is asked whether the trial is to end.
_ASK_S = 0.5

#: What a run's archive is sent in.
_PIECE_BYTES = 4 << 20

_LAST = ("end", "problem", "again")


def start_process(environ: Mapping[str, str]) -> Dialogue:
    """node_run.py, which waits for its order; it ends by itself when it gets none."""
    return dialogue([sys.executable, "-m", "seatrial.search.on_ray.node_run"], environ)


class Following:
    """A run, from its start to its end.

    Args:
        order: what node_run.py wants to know. mailbox: where everything is told. process: of ``start_process``.

    Attributes:
        value, reports: the objective's newest value, and how many there were.
    """

    def __init__(self, order: Mapping[str, Any], mailbox: Any, process: Dialogue) -> None:
        self.value: float | None = None
        self.reports = 0
        self._number, self._mailbox = order["number"], mailbox
        self._ended, self._news = threading.Event(), threading.Event()
        self._put({"kind": "started"})
        self._commands = process.commands
        self._send(order)
        threading.Thread(target=self._read, args=(process.lines,), daemon=True).start()
        threading.Thread(target=self._ask, daemon=True).start()

    @property
    def ended(self) -> bool:
        """The run has ended, and all of it has been told."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> None:
        """Until there is something new."""
        self._news.wait(timeout_s)
        if not self.ended:
            self._news.clear()

    def end(self) -> None:
        """Ray has stopped the trial: end the run if it lives, and wait. Its GPUs are free then."""
        if not self._ended.wait(2 * _ASK_S):  # the searcher has said why by then, if it knows
            self._send({"origin": "search", "why": "Ray has stopped the trial"})
        self._ended.wait()

    def _ask(self) -> None:
        told = None
        while not self._ended.wait(_ASK_S):
            over = ray.get(self._mailbox.over.remote(self._number))
            if over is not None and over != told:
                told = over
                self._send({"origin": over[0], "why": over[1]})

    def _read(self, lines: IO[str]) -> None:
        last = None
        for text in lines:
            line = json.loads(text)
            if line["kind"] == "report":
                self.value, self.reports = line["value"], line["step"]
            elif line["kind"] == "end":
                self._bring(line)
            last = line["kind"]
            self._put(line)
            self._news.set()
            if last in _LAST:
                break
        if last not in _LAST:
            message = "The process that follows the run was killed"
            self._put({"kind": "problem", "message": message, "cause": None, "run": "seatrial runs ls", "exit_code": 5})
        self._ended.set()
        self._news.set()
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()

    def _bring(self, line: Mapping[str, Any]) -> None:
        """The archive, piece by piece, through Ray's object store."""
        if line["archive"] is None:
            return
        with open(line["archive"], "rb") as file:  # noqa: PTH123
            while piece := file.read(_PIECE_BYTES):
                ray.get(self._mailbox.write.remote(line["run_id"], piece))

    def _send(self, command: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._commands.write(json.dumps(command) + "\n")
            self._commands.flush()

    def _put(self, line: Mapping[str, Any]) -> None:
        ray.get(self._mailbox.put.remote(self._number, {**line, "node": ray.get_runtime_context().get_node_id()}))

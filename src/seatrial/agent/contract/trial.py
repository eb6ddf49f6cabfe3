"""The trial of the target's torch: a matrix product on each GPU of the plan, in a child of the agent's own.

It runs while the target does its imports (docs/decisions/0017): importing torch takes seconds. What the target did
counts only once the trial has passed; where it fails, the target is stopped. Being of the target's user, it shuts
itself off (shield.py) before the target starts: else that could write the answer for it.
"""

import json
import os
import select
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from seatrial.agent.plan import Gpu, Plan
from seatrial.agent.process import command_line
from seatrial.agent.process.shield import PR_SET_DUMPABLE
from seatrial.findings.finding import Finding
from seatrial.findings.match import match_text
from seatrial.probe.programs import read_program

#: Python starts in 20 ms, from a cold disk in seconds.
READY_S = 10.0

#: The first import of torch from a cold disk takes minutes.
TIMEOUT_S = 300.0


class Trial:
    """Start it, then either ``wait`` for it or tell it that its process has ``ended``; then ask for ``kernels``.

    Args:
        env: the target's, as CUDA showed ``visible`` (UUIDs in CUDA's order) in it.
        gpus: that must pass.
        explain: the finding for the keys of a ``gpu.kernel`` event that failed.
    """

    def __init__(
        self,
        plan: Plan,
        env: Dict[str, str],
        visible: Sequence[str],
        gpus: Sequence[Gpu],
        explain: Callable[[Dict[str, Any]], Finding],
    ) -> None:
        self._plan, self._env, self._visible, self._gpus = plan, dict(env), list(visible), list(gpus)
        self.explain = explain
        self.pid: Optional[int] = None
        self.due_s: Optional[float] = None
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._code: Optional[int] = None
        self._trouble: Optional[str] = None

    @property
    def started(self) -> bool:
        """By this run, or by an attempt before."""
        return self._process is not None or self._trouble is not None

    @property
    def running(self) -> bool:
        """Started, and its process has not ended."""
        return self._process is not None and self._code is None

    def start(self) -> None:
        """Start the child and wait until it is shut off; when it cannot be, that is what ``kernels`` will say."""
        python, folder = command_line.interpreter(self._plan), self._plan.run_dir
        ready, write_end = os.pipe()
        try:
            # Files: nobody reads while it runs, and a pipe that is full would hold it up.
            self._out, self._err = (tempfile.TemporaryFile(dir=folder) for _ in "oe")  # noqa: SIM115
            self._process = subprocess.Popen(
                [python, "-c", _program(write_end)],
                env=self._env,
                cwd=self._plan.workdir,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,  # Ctrl-C in a terminal is for the target
                pass_fds=(write_end,),
            )
        except OSError as error:
            self._trouble = "%s cannot be run: %s" % (error.filename or python, error.strerror)
            return
        finally:
            os.close(write_end)
            if self._process is not None:
                select.select([ready], [], [], READY_S)  # readable, too, when it has ended
            os.close(ready)
        self.pid, self.due_s = self._process.pid, time.monotonic() + TIMEOUT_S

    def wait(self) -> None:
        """Until it has ended. For when nothing else is to be done meanwhile."""
        if self._process is None:
            return
        try:
            self.ended(self._process.wait(TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self.give_up()
            self.ended(self._process.wait())

    def ended(self, code: int) -> None:
        """Its process has been reaped; its exit code, or minus the signal that killed it."""
        assert self._process is not None
        self._process.returncode = self._code = code
        self.due_s = None

    def give_up(self) -> None:
        """It takes too long."""
        if self._process is not None:
            self._trouble = "the GPU check did not finish within %.0f s" % TIMEOUT_S
            self._process.kill()
            self.due_s = None

    def kernels(self) -> List[Dict[str, Any]]:
        """What came of it: keys of ``gpu.kernel``, one for each GPU that must pass."""
        tried = self._result()
        results = {self._visible[kernel["index"]]: kernel for kernel in tried["kernels"]}
        unseen = {"ok": False, "ms": None, "error": tried["error"] or "torch does not see this GPU"}
        kernels = []
        for gpu in self._gpus:
            result = results.get(gpu.uuid, unseen)
            kernel = {"uuid": gpu.uuid, "kind": "torch", "torch": tried["torch"]}
            kernel.update((key, result[key]) for key in ("ok", "ms", "error"))
            kernels.append(kernel)
        return kernels

    def _result(self) -> Dict[str, Any]:
        """The JSON object on the last line of the child's output, or why there is none."""
        if self._trouble is None:
            with self._out, self._err:
                said, complained = (_content(file) for file in (self._out, self._err))
            try:
                result: Dict[str, Any] = json.loads(said.splitlines()[-1])
                return result
            except (IndexError, ValueError):
                last = (complained.strip().splitlines() or ["no message"])[-1]
                self._trouble = "the GPU check failed with exit code %s: %s" % (self._code, last)
        return {"torch": None, "kernels": [], "error": self._trouble}


def beaten_to_the_memory(kernel: Dict[str, Any]) -> bool:
    """Whether it failed for want of memory: the target had taken it by then, since the driver's kernel found some."""
    return any(finding.id == "cuda-out-of-memory" for finding in match_text(kernel["error"] or ""))


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def _program(ready: int) -> str:
    # -c puts the working directory first, where a json.py of the user may lie. (-I would lose PYTHONPATH, and torch.)
    path = "import sys\nsys.path[:] = [folder for folder in sys.path if folder]\n"
    shut = "import ctypes, os\nctypes.CDLL(None).prctl(%d, 0, 0, 0, 0)\nos.close(%d)\n" % (PR_SET_DUMPABLE, ready)
    return path + shut + read_program("torch_check.py")

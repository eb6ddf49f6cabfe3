"""The trial of the target's framework: a matrix product on each GPU of the plan, in a child of the agent's own.

It runs while the target imports (docs/decisions.md, 0017), since importing torch or TensorFlow takes seconds. What the
target did counts only once the trial has passed; where it fails, the target is stopped. Being of the target's user, it
shuts itself off (shield.py) before the target starts: else that could write the answer for it.
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

#: Plan.check → the framework's name in sentences. The program is probe/programs/<check>_check.py.
FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}

#: What TensorFlow and JAX say where the target has left too little for cuBLAS and cuDNN (tensorflow#9489, #45070); a
#: library that is broken says the same, and the target ends of it.
_NO_ROOM = ("CUBLAS_STATUS_NOT_INITIALIZED", "failed to create cublas handle", "CUDNN_STATUS_NOT_INITIALIZED")

#: Python starts in 20 ms, from a cold disk in seconds.
READY_S = 10.0

#: Characters kept of a line that the framework logged.
_MOST_WORDS = 300

#: The first import of a framework from a cold disk takes minutes.
TIMEOUT_S = 300.0

#: A TensorFlow that has only PTX for the GPU says that compiling it may take 30 minutes (tensorflow#97387); the target
#: waits as long for its own.
COMPILING_S = 2400.0


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
        self._complained = ""
        self._lacks: List[str] = []
        self._timeout_s = COMPILING_S if plan.check == "tensorflow" else TIMEOUT_S

    @property
    def framework(self) -> str:
        """Its name in sentences."""
        return FRAMEWORKS[self._plan.check]

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
                [python, "-c", _program(write_end, self._plan.check)],
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
        self.pid, self.due_s = self._process.pid, time.monotonic() + self._timeout_s

    def wait(self) -> None:
        """Until it has ended. For when nothing else is to be done meanwhile."""
        if self._process is None:
            return
        try:
            self.ended(self._process.wait(self._timeout_s))
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
            self._trouble = "the GPU check did not finish within %.0f s" % self._timeout_s
            self._process.kill()
            self.due_s = None

    def kernels(self) -> List[Dict[str, Any]]:
        """What came of it: keys of ``gpu.kernel``, one for each GPU that must pass."""
        tried = self._result()
        results = {self._visible[kernel["index"]]: kernel for kernel in tried["kernels"]}
        unseen = {"ok": False, "ms": None, "error": tried["error"] or "%s does not see this GPU" % self.framework}
        kernels = []
        for gpu in self._gpus:
            result = results.get(gpu.uuid, unseen)
            kernel = {"uuid": gpu.uuid, "kind": self._plan.check, "torch": tried.get("torch")}
            if tried.get("framework"):
                kernel["framework"] = tried["framework"]
            kernel.update((key, result[key]) for key in ("ok", "ms", "error"))
            if not kernel["ok"] and self._plan.check != "torch":
                kernel["error"] = self._with_its_words(str(kernel["error"]))
            kernels.append(kernel)
        return kernels

    def remarks(self) -> List[Finding]:
        """What failed beside kernels that ran: only some scripts need it. Ask after ``kernels``."""
        if self._plan.check == "torch":  # its program tries what every script needs, and that alone
            return []
        told = self._lacks if self._code == 0 else [*self._lacks, *self._complained.splitlines()]
        found = match_text("\n".join(told)) if told else []
        for finding in found:
            finding.severity = "warning"
        return [finding for finding in found if finding.id not in ("cuda-error", "cuda-out-of-memory")]

    def _with_its_words(self, error: str) -> str:
        """The error, and what the framework had logged before it: there the reason stands."""
        logged = [line.strip() for line in self._complained.splitlines()]
        found = {line: [each.id for each in match_text(line) if each.severity != "info"] for line in logged}
        known = sorted((line for line in logged if found[line]), key=lambda line: _GENERAL.get(found[line][0], 0))
        return "%s: %s" % (error, known[0][:_MOST_WORDS]) if known and known[0] not in error else error

    def _result(self) -> Dict[str, Any]:
        """The JSON object on the last whole line of the child's output, or why there is none."""
        if self._trouble is None:
            with self._out, self._err:
                said, self._complained = (_content(file) for file in (self._out, self._err))
            for line in reversed(said.splitlines()):
                if line.startswith("{"):
                    try:
                        result: Dict[str, Any] = json.loads(line)
                    except ValueError:
                        continue
                    self._lacks = [str(lack) for lack in result.get("lacks", [])]
                    return result
            last = (self._complained.strip().splitlines() or ["no message"])[-1]
            self._trouble = "the GPU check failed with exit code %s: %s" % (self._code, last)
        return {"torch": None, "kernels": [], "error": self._trouble}


#: Findings that say that it does not start, and not why: any other line comes before them. "Could not find cuda
#: drivers" is what TensorFlow and JAX say without libcudart, too; the driver has run a kernel by then.
_GENERAL = {"jax-plugin-broken": 1, "jax-cuda-failed": 1, "jax-no-gpu": 2, "tensorflow-no-gpu": 3}


def beaten_to_the_memory(kernel: Dict[str, Any]) -> bool:
    """Whether it failed for want of memory: the target had taken it by then, since the driver's kernel found some."""
    error = kernel["error"] or ""
    if kernel["kind"] != "torch" and any(words.lower() in error.lower() for words in _NO_ROOM):
        return True
    return any(finding.id == "cuda-out-of-memory" for finding in match_text(error))


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def _program(ready: int, check: str) -> str:
    # -c puts the working directory first, where a json.py of the user may lie. (-I would lose PYTHONPATH, and torch.)
    path = "import sys\nsys.path[:] = [folder for folder in sys.path if folder]\n"
    shut = "import ctypes, os\nctypes.CDLL(None).prctl(%d, 0, 0, 0, 0)\nos.close(%d)\n" % (PR_SET_DUMPABLE, ready)
    return path + shut + read_program(check + "_check.py")

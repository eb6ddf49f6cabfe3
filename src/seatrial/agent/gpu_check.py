"""Check the GPU contract: a kernel on each expected GPU before the target starts, and one by the target's framework.

A GPU that is missing or fails ends the run with a finding that names the cause.
"""

import glob
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import seatrial
from seatrial.agent import target
from seatrial.agent.isolation import PR_SET_DUMPABLE, archive_descriptor, own_python
from seatrial.agent.journal import Journal, print_to_stderr
from seatrial.agent.plan import Gpu
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import GpuCheck, GpuKernel
from seatrial.findings.device_code import ARCHITECTURES
from seatrial.findings.finding import Finding, in_one_line
from seatrial.findings.gpu_missing import cut_down, explain_missing
from seatrial.findings.match import match_text
from seatrial.probe import cuda, nvml
from seatrial.probe.programs import read_program

#: Plan.check → the framework's name in sentences. The program is probe/programs/<check>_check.py.
FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}
#: Messages of TensorFlow and JAX when the target has left too little memory for cuBLAS and cuDNN (tensorflow#9489,
#: #45070). A broken library prints the same, and the target ends of it.
_NO_ROOM = ("CUBLAS_STATUS_NOT_INITIALIZED", "failed to create cublas handle", "CUDNN_STATUS_NOT_INITIALIZED")
#: Python starts in 20 ms, from a cold disk in seconds.
READY_S = 10.0
#: Characters kept of a line that the framework logged.
_MOST_WORDS = 300
#: The first import of a framework from a cold disk takes minutes.
TIMEOUT_S = 300.0
#: A TensorFlow with only PTX for the GPU may compile for 30 minutes (tensorflow#97387); the target waits as long.
COMPILING_S = 2400.0
#: Findings that a framework does not start, without the reason: any other line comes before them. "Could not find cuda
#: drivers" is what TensorFlow and JAX print without libcudart, too; the driver has run a kernel by then.
_GENERAL = {"jax-plugin-broken": 1, "jax-cuda-failed": 1, "jax-no-gpu": 2, "tensorflow-no-gpu": 3}
#: The first cuInit on a machine with 8 GPUs takes seconds.
_TIMEOUT_S = 120.0
#: NVML's compute modes for more than one process. Source: nvml.h, nvmlComputeMode_t; None: unknown, so the default, 0.
_SHARED_MODES = (0, None)


def explain(
    plan: AgentPlan,
    env: Dict[str, str],
    seen: Dict[str, Any],
    inventory: nvml.Inventory,
    kernel: Optional[Dict[str, Any]] = None,
) -> Finding:
    """Return the finding that explains why GPUs of the plan are missing or, with a failed ``kernel``, unusable.

    ``env``: the target's. ``seen``: result of probe.cuda.check. ``kernel``: keys of its ``gpu.kernel`` event.
    """
    context = {
        "device_nodes": [os.path.basename(path) for path in glob.glob("/dev/nvidia*") + glob.glob("/dev/dxg")],
        "libcuda": seen["libcuda"],
        "cu_init": seen["cu_init"],
        "cuda_driver": seen["cuda_driver"],
        "nvml_error": inventory.error,
        "cuda_visible_devices": env.get("CUDA_VISIBLE_DEVICES"),
        "nvidia_visible_devices": env.get("NVIDIA_VISIBLE_DEVICES"),
        "nvidia_driver_capabilities": env.get("NVIDIA_DRIVER_CAPABILITIES"),
        "driver_version": inventory.driver_version,
        "mig": {
            "enabled": any(gpu.mig_enabled for gpu in inventory.gpus),
            "instances": sum(gpu.mig is not None for gpu in inventory.gpus),
        },
        "injection": plan.injection,
    }
    if kernel is not None:
        context.update(kernel_error=kernel["error"], kernel_uuid=kernel["uuid"], torch=kernel["torch"])
        context["framework"] = kernel.get("framework")
    finding = explain_missing([gpu._asdict() for gpu in plan.gpus], seen["visible"], context)
    finding.evidence.extend([seen["error"]] if seen["error"] else [])
    finding.evidence.extend(inventory.faults)
    return finding


class FrameworkCheck:
    """Checks the framework in a child. Call ``start``, then ``wait``, or ``ended`` at its end; then ``kernels``.

    ``env``: the target's, as CUDA showed ``visible`` (UUIDs in CUDA's order) in it. ``gpus``: that must pass.
    ``explain``: the finding for the keys of a ``gpu.kernel`` event that failed.
    """

    def __init__(
        self,
        plan: AgentPlan,
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
        """Return the framework's name as sentences write it."""
        return FRAMEWORKS[self._plan.check]

    @property
    def started(self) -> bool:
        """Return True once this check was started, or could not be."""
        return self._process is not None or self._trouble is not None

    @property
    def running(self) -> bool:
        """Return True while the check's process has not ended."""
        return self._process is not None and self._code is None

    def start(self) -> None:
        """Start the child and wait until it is shut off; when it cannot be, ``kernels`` will have the reason."""
        python, folder = target.interpreter(self._plan), self._plan.run_dir
        ready, write_end = os.pipe()
        try:
            # Files, not pipes: nothing reads while it runs, and a full pipe would block it.
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
        """Wait for the check's end, up to its time limit. For use when nothing else is to be done meanwhile."""
        if self._process is None:
            return
        try:
            self.ended(self._process.wait(self._timeout_s))
        except subprocess.TimeoutExpired:
            self.give_up()
            self.ended(self._process.wait())

    def ended(self, code: int) -> None:
        """Record that the check's process was reaped with this exit code, or minus the signal that killed it."""
        assert self._process is not None
        self._process.returncode = self._code = code
        self.due_s = None

    def give_up(self) -> None:
        """Kill the check's process, because it takes too long."""
        if self._process is not None:
            self._trouble = "the GPU check did not finish within %.0f s" % self._timeout_s
            self._process.kill()
            self.due_s = None

    def kernels(self) -> List[Dict[str, Any]]:
        """Return what came of it: keys of ``gpu.kernel``, one for each GPU that must pass."""
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

    def write_remarks(self, journal: Journal) -> None:
        """Write warnings of failures although kernels ran: only some scripts need them. Call after ``kernels``."""
        if self._plan.check == "torch":  # its program tries what every script needs, and that alone
            return
        lines = self._lacks if self._code == 0 else [*self._lacks, *self._complained.splitlines()]
        for finding in match_text("\n".join(lines)):
            if finding.id not in ("cuda-error", "cuda-out-of-memory"):
                finding.severity = "warning"
                journal.write(finding.event())

    def _with_its_words(self, error: str) -> str:
        """Return the error, with the line that the framework logged before it and that a known failure matches."""
        logged = [line.strip() for line in self._complained.splitlines()]
        found = {line: [each.id for each in match_text(line) if each.severity != "info"] for line in logged}
        known = sorted((line for line in logged if found[line]), key=lambda line: _GENERAL.get(found[line][0], 0))
        return "%s: %s" % (error, known[0][:_MOST_WORDS]) if known and known[0] not in error else error

    def _result(self) -> Dict[str, Any]:
        """Return the JSON object on the last whole line of the child's output, or one with the ``error`` instead."""
        if self._trouble is None:
            with self._out, self._err:
                self._out.seek(0), self._err.seek(0)
                printed, self._complained = (file.read().decode("utf-8", "replace") for file in (self._out, self._err))
            for line in reversed(printed.splitlines()):
                with suppress(ValueError):
                    if line.startswith("{"):
                        result: Dict[str, Any] = json.loads(line)
                        self._lacks = [str(lack) for lack in result.get("lacks", [])]
                        return result
            last = (self._complained.strip().splitlines() or ["no message"])[-1]
            self._trouble = "the GPU check failed with exit code %s: %s" % (self._code, last)
        return {"torch": None, "kernels": [], "error": self._trouble}


def lost_memory_race(kernel: Dict[str, Any]) -> bool:
    """Return True if it failed for lack of memory: the driver's kernel found some, so the target has taken it since."""
    error = kernel["error"] or ""
    if kernel["kind"] != "torch" and any(words.lower() in error.lower() for words in _NO_ROOM):
        return True
    return any(finding.id == "cuda-out-of-memory" for finding in match_text(error))


def _program(ready: int, check: str) -> str:
    # -c puts the working directory first, where a json.py of the user may lie. (-I would lose PYTHONPATH, and torch.)
    path = "import sys\nsys.path[:] = [folder for folder in sys.path if folder]\n"
    shut = "import ctypes, os\nctypes.CDLL(None).prctl(%d, 0, 0, 0, 0)\nos.close(%d)\n" % (PR_SET_DUMPABLE, ready)
    return path + shut + read_program(check + "_check.py")


class CheckOutcome(NamedTuple):
    """``finding`` is None when the contract holds. ``extra`` are GPUs that CUDA sees beyond the plan.

    ``gpus`` are the plan's or, if it only counts them, those that were found. ``trial`` is to be run alongside the
    target; None if there is none, or it was run before.
    """

    finding: Optional[Finding]
    extra: List[str]
    gpus: Sequence[Gpu] = ()
    trial: Optional[FrameworkCheck] = None


def check(plan: AgentPlan, env: Dict[str, str], journal: Journal) -> CheckOutcome:
    """Try the GPUs in children with the target's environment; write down what they found, with one finding at most."""
    seen = _see(plan, env)
    count = plan.gpu_count
    if count is not None:  # the first ones that are there; for a missing one, a name that fits none
        there = seen["visible"][:count]
        found = [Gpu(gpu["uuid"], gpu["name"], None, gpu.get("compute_capability")) for gpu in there]
        found += [Gpu("GPU-%d-of-%d" % (number + 1, count), "any") for number in range(len(found), count)]
        plan = plan._replace(gpus=tuple(found))
    inventory = nvml.inventory()
    expected = [gpu.uuid for gpu in plan.gpus]
    visible = [gpu["uuid"] for gpu in seen["visible"]]
    complete = set(expected) <= set(visible)
    versions = {"driver": inventory.driver_version, "cuda_driver": seen["cuda_driver"] or inventory.cuda_driver_version}
    error = seen["error"] or inventory.error
    journal.write(GpuCheck(expected=expected, visible=seen["visible"], **versions, ok=complete, error=error))
    extra = [uuid for uuid in visible if uuid not in expected]
    if not complete:
        return CheckOutcome(explain(plan, env, seen, inventory), extra, plan.gpus)
    cut = cut_down(env.get(ARCHITECTURES, ""), [gpu for gpu in seen["visible"] if gpu["uuid"] in expected])
    if cut is not None:
        return CheckOutcome(cut, extra, plan.gpus)
    kernels = [kernel for kernel in seen["kernels"] if kernel["uuid"] in expected] if plan.check != "none" else []
    failed = _write_kernels(kernels, journal)
    if plan.check in FRAMEWORKS and failed is None:
        trial = FrameworkCheck(plan, env, visible, plan.gpus, partial(explain, plan, env, seen, inventory))
        if not _before_the_target(plan, inventory):
            return CheckOutcome(None, extra, plan.gpus, trial)
        trial.start()
        trial.wait()
        failed = _write_kernels(trial.kernels(), journal)
        trial.write_remarks(journal)
    return CheckOutcome(explain(plan, env, seen, inventory, failed) if failed else None, extra, plan.gpus)


def _before_the_target(plan: AgentPlan, inventory: nvml.Inventory) -> bool:
    """Return whether the framework's check cannot run alongside the target: a person would be typing into it, or a GPU
    takes one process at a time."""
    modes = {gpu.uuid: gpu.compute_mode for gpu in inventory.gpus}
    shared = all(modes.get(gpu.uuid) in _SHARED_MODES for gpu in plan.gpus)
    return plan.interactive or not shared


def passed(trial: FrameworkCheck, journal: Journal) -> bool:
    """Write down what came of a trial alongside the target; False when it has broken the contract."""
    kernels = trial.kernels()
    if any(lost_memory_race(kernel) for kernel in kernels):
        journal.note("%s's own kernel was not tested: the target already used the GPU's memory" % trial.framework)
        return True
    if (failed := _write_kernels(kernels, journal)) is not None:
        report(trial.explain(failed), journal)
    else:
        trial.write_remarks(journal)
    return failed is None


def report(finding: Finding, journal: Journal) -> None:
    """Report the broken contract in the evidence and on the agent's stderr."""
    journal.write(finding.event())
    print_to_stderr(in_one_line(finding.message, finding.cause, finding.fix))


def _write_kernels(kernels: List[Dict[str, Any]], journal: Journal) -> Optional[Dict[str, Any]]:
    """Write an event for each kernel and return the first that failed, or None."""
    for kernel in kernels:
        journal.write(GpuKernel(**kernel))
    return next((kernel for kernel in kernels if not kernel["ok"]), None)


def _see(plan: AgentPlan, env: Dict[str, str]) -> Dict[str, Any]:
    """Run probe.cuda.check in a child, with the plan's spelling of UUIDs: CUDA gives 16 bytes for GPU- and MIG-."""
    # The archive, or the folder of the package. -I: modules of the user's folder must not stand in for Python's own.
    root = os.path.dirname(os.path.dirname(os.path.abspath(seatrial.__file__)))
    archive = archive_descriptor(root)
    library, _ = cuda.find(cuda.LIBRARY, plan.filled, env)
    program = "import sys; sys.path.insert(0, %r); from seatrial.probe import cuda; cuda.main(%r)" % (root, library)
    argv = [*own_python(os.path.dirname(library)), "-I", "-S", "-c", program]
    # A library that is loaded into every process would answer for the driver.
    own = {name: value for name, value in env.items() if name not in ("LD_PRELOAD", "LD_AUDIT")}
    fds = () if archive is None else (archive,)
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        done = subprocess.run(
            argv, env=own, cwd=plan.workdir, pass_fds=fds, stdin=null, stdout=pipe, stderr=pipe, timeout=_TIMEOUT_S
        )
        seen: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1].decode())
    except subprocess.TimeoutExpired:
        error = "the GPU check did not finish within %.0f s" % _TIMEOUT_S
    except OSError as failure:
        error = "%s cannot be run: %s" % (sys.executable, failure.strerror)
    except (IndexError, ValueError):
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        error = "the GPU check failed with exit code %d: %s" % (done.returncode, last)
    else:
        spelling = {_bare(gpu.uuid): gpu.uuid for gpu in plan.gpus}
        for entry in seen["visible"] + seen["kernels"]:
            entry["uuid"] = spelling.get(_bare(entry["uuid"]), entry["uuid"])
        return seen
    return dict(cuda.nothing_seen(), libcuda=cuda.LIBRARY, error=error)


def _bare(uuid: str) -> str:
    """Return the UUID in lower case without GPU- or MIG-."""
    return uuid.split("-", 1)[-1].lower()

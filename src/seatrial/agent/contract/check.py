"""The GPU contract: the GPUs that CUDA sees are those of the plan, and each runs a kernel. Else nothing starts.

The driver's kernel runs before the target starts; its framework's, which takes an import of that, beside it (trial.py).
"""

import json
import os
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import seatrial
from seatrial.agent.contract.context import explain
from seatrial.agent.contract.trial import FRAMEWORKS, Trial, beaten_to_the_memory
from seatrial.agent.plan import Gpu, Plan
from seatrial.agent.streams.journal import Journal, say
from seatrial.events import GpuCheck, GpuKernel
from seatrial.findings.cut_down import ARCHITECTURES, cut_down
from seatrial.findings.finding import Finding
from seatrial.findings.labels import in_one_line
from seatrial.probe import cuda, nvml

#: The first cuInit on a machine with 8 GPUs takes seconds.
_TIMEOUT_S = 120.0

#: NVML's compute modes in which a GPU takes more than one process. Source: nvml.h, nvmlComputeMode_t; None: unknown,
#: and then it is the default, 0.
_SHARED_MODES = (0, None)


class Outcome(NamedTuple):
    """``finding`` is None when the contract holds. ``extra`` are GPUs that CUDA sees beyond the plan.

    ``gpus`` are the plan's or, where it only counts them, those that were found. ``trial`` is still to be passed,
    beside the target; None: there is none, or it was made before.
    """

    finding: Optional[Finding]
    extra: List[str]
    gpus: Sequence[Gpu] = ()
    trial: Optional[Trial] = None


class CheckError(Exception):
    """A check could not even run; the text is one sentence."""


def check(plan: Plan, env: Dict[str, str], journal: Journal) -> Outcome:
    """See and try the GPUs in children that run with the target's environment; write down what they found.

    A broken contract has one finding, about the first GPU that failed: the others mostly fail of the same.
    """
    seen = _see(plan, env)
    if plan.gpu_count is not None:
        plan = plan._replace(gpus=_counted(plan.gpu_count, seen["visible"]))
    inventory = nvml.inventory()
    expected = [gpu.uuid for gpu in plan.gpus]
    visible = [gpu["uuid"] for gpu in seen["visible"]]
    complete = set(expected) <= set(visible)
    journal.write(
        GpuCheck(
            expected=expected,
            visible=seen["visible"],
            driver=inventory.driver_version,
            cuda_driver=seen["cuda_driver"] or inventory.cuda_driver_version,
            ok=complete,
            error=seen["error"] or inventory.error,
        )
    )
    extra = [uuid for uuid in visible if uuid not in expected]
    if not complete:
        return Outcome(explain(plan, env, seen, inventory), extra, plan.gpus)
    cut = cut_down(env.get(ARCHITECTURES, ""), [gpu for gpu in seen["visible"] if gpu["uuid"] in expected])
    if cut is not None:
        return Outcome(cut, extra, plan.gpus)
    kernels = [kernel for kernel in seen["kernels"] if kernel["uuid"] in expected] if plan.check != "none" else []
    failed = _write_kernels(kernels, journal)
    if plan.check in FRAMEWORKS and failed is None:
        trial = Trial(plan, env, visible, plan.gpus, lambda kernel: explain(plan, env, seen, inventory, kernel))
        if not _before_the_target(plan, inventory):
            return Outcome(None, extra, plan.gpus, trial)
        trial.start()
        trial.wait()
        failed = _write_kernels(trial.kernels(), journal)
        _remark(trial, journal)
    finding = explain(plan, env, seen, inventory, failed) if failed else None
    return Outcome(finding, extra, plan.gpus)


def _before_the_target(plan: Plan, inventory: nvml.Inventory) -> bool:
    """Whether the framework's trial cannot run beside the target: nothing follows, a person would be typing into it, or
    a GPU takes one process at a time."""
    modes = {gpu.uuid: gpu.compute_mode for gpu in inventory.gpus}
    shared = all(modes.get(gpu.uuid) in _SHARED_MODES for gpu in plan.gpus)
    return plan.interactive or plan.host_sampled or not shared


def passed(trial: Trial, journal: Journal) -> bool:
    """Write down what came of a trial beside the target; False when it has broken the contract."""
    kernels = trial.kernels()
    if any(beaten_to_the_memory(kernel) for kernel in kernels):
        journal.note("%s's own kernel was not tested: the target already used the GPU's memory" % trial.framework)
        return True
    failed = _write_kernels(kernels, journal)
    if failed is not None:
        tell(trial.explain(failed), journal)
    else:
        _remark(trial, journal)
    return failed is None


def _remark(trial: Trial, journal: Journal) -> None:
    """What the framework cannot do, though its kernel ran: warnings, that stop nothing."""
    for finding in trial.remarks():
        journal.write(finding.event())


def tell(finding: Finding, journal: Journal) -> None:
    """The broken contract, in the evidence and on the agent's stderr."""
    journal.write(finding.event())
    say(in_one_line(finding.message, finding.cause, finding.fix))


def _counted(count: int, visible: List[Dict[str, Any]]) -> List[Gpu]:
    """The first ``count`` GPUs that are there; for one that is not, a name that fits none."""
    found = [Gpu(gpu["uuid"], gpu["name"], None, gpu.get("compute_capability")) for gpu in visible[:count]]
    return found + [Gpu("GPU-%d-of-%d" % (number + 1, count), "any") for number in range(len(found), count)]


def _write_kernels(kernels: List[Dict[str, Any]], journal: Journal) -> Optional[Dict[str, Any]]:
    """The first that failed, or None."""
    for kernel in kernels:
        journal.write(GpuKernel(**kernel))
    return next((kernel for kernel in kernels if not kernel["ok"]), None)


def _see(plan: Plan, env: Dict[str, str]) -> Dict[str, Any]:
    """probe.cuda.check in a child, with the plan's spelling of UUIDs: CUDA gives 16 bytes for GPU- and MIG- alike."""
    # The archive, or the folder of the package. -I: modules of the user's folder must not stand in for Python's own.
    root = os.path.dirname(os.path.dirname(os.path.abspath(seatrial.__file__)))
    program = "import sys; sys.path.insert(0, %r); from seatrial.probe import cuda; cuda.main()" % root
    # What is loaded into every process would also be loaded into this one, and answer for the driver.
    env = {name: value for name, value in env.items() if name not in ("LD_PRELOAD", "LD_AUDIT")}
    try:
        seen: Dict[str, Any] = _child([sys.executable, "-I", "-c", program], env, plan.workdir)
    except CheckError as error:
        return dict(cuda.nothing_seen(), libcuda=cuda.LIBRARY, error=str(error))
    spelling = {_bare(gpu.uuid): gpu.uuid for gpu in plan.gpus}
    for entry in seen["visible"] + seen["kernels"]:
        entry["uuid"] = spelling.get(_bare(entry["uuid"]), entry["uuid"])
    return seen


def _child(argv: List[str], env: Dict[str, str], workdir: str) -> Any:
    """The JSON object on the last line of a child's stdout. Raises CheckError."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise CheckError("the GPU check did not finish within %.0f s" % _TIMEOUT_S) from None
    except OSError as error:
        raise CheckError("%s cannot be run: %s" % (argv[0], error.strerror)) from None
    try:
        return json.loads(done.stdout.splitlines()[-1].decode())
    except (IndexError, ValueError):
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise CheckError("the GPU check failed with exit code %d: %s" % (done.returncode, last)) from None


def _bare(uuid: str) -> str:
    """The UUID without GPU- or MIG-."""
    return uuid.split("-", 1)[-1].lower()

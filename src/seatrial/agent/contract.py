"""The GPU contract: the GPUs that CUDA sees are those of the plan, and each runs a kernel. Else nothing starts."""

import json
import os
import pkgutil
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import seatrial
from seatrial.agent import launcher
from seatrial.agent.context import explain
from seatrial.agent.journal import Journal
from seatrial.agent.plan import Gpu, Plan
from seatrial.findings.finding import Finding
from seatrial.probe import cuda, nvml

#: The first cuInit on a machine with 8 GPUs takes seconds, the first import of torch from a cold disk minutes.
_DRIVER_CHECK_TIMEOUT_S = 120.0
_TORCH_CHECK_TIMEOUT_S = 300.0


class Outcome(NamedTuple):
    """``finding`` is None when the contract holds. ``extra`` are GPUs that CUDA sees beyond the plan.

    ``gpus`` are the plan's or, where it only counts them, those that were found.
    """

    finding: Optional[Finding]
    extra: List[str]
    torch: Optional[Dict[str, Any]] = None
    gpus: Sequence[Gpu] = ()


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
        "gpu.check",
        expected=expected,
        visible=seen["visible"],
        driver=inventory.driver_version,
        cuda_driver=seen["cuda_driver"] or inventory.cuda_driver_version,
        ok=complete,
        error=seen["error"] or inventory.error,
    )
    extra = [uuid for uuid in visible if uuid not in expected]
    if not complete:
        return Outcome(explain(plan, env, seen, inventory), extra, gpus=plan.gpus)
    kernels = [kernel for kernel in seen["kernels"] if kernel["uuid"] in expected] if plan.check != "none" else []
    failed = _write_kernels(kernels, journal)
    torch = None
    if plan.check == "torch" and failed is None:
        kernels = _try_torch(plan, env, visible)
        failed = _write_kernels(kernels, journal)
        torch = kernels[0]["torch"]
    finding = explain(plan, env, seen, inventory, failed) if failed else None
    return Outcome(finding, extra, torch, plan.gpus)


def _counted(count: int, visible: List[Dict[str, Any]]) -> List[Gpu]:
    """The first ``count`` GPUs that are there; for one that is not, a name that fits none."""
    found = [Gpu(gpu["uuid"], gpu["name"], None, gpu.get("compute_capability")) for gpu in visible[:count]]
    return found + [Gpu("GPU-%d-of-%d" % (number + 1, count), "any") for number in range(len(found), count)]


def _write_kernels(kernels: List[Dict[str, Any]], journal: Journal) -> Optional[Dict[str, Any]]:
    """The first that failed, or None."""
    for kernel in kernels:
        journal.write("gpu.kernel", **kernel)
    return next((kernel for kernel in kernels if not kernel["ok"]), None)


def _see(plan: Plan, env: Dict[str, str]) -> Dict[str, Any]:
    """probe.cuda.check in a child, with the plan's spelling of UUIDs: CUDA gives 16 bytes for GPU- and MIG- alike."""
    # The archive, or the folder of the package. -I: modules of the user's folder must not stand in for Python's own.
    root = os.path.dirname(os.path.dirname(os.path.abspath(seatrial.__file__)))
    program = "import sys; sys.path.insert(0, %r); from seatrial.probe import cuda; cuda.main()" % root
    try:
        seen: Dict[str, Any] = _child([sys.executable, "-I", "-c", program], env, plan, _DRIVER_CHECK_TIMEOUT_S)
    except CheckError as error:
        return dict(cuda.nothing_seen(), libcuda=cuda.LIBRARY, error=str(error))
    spelling = {_bare(gpu.uuid): gpu.uuid for gpu in plan.gpus}
    for entry in seen["visible"] + seen["kernels"]:
        entry["uuid"] = spelling.get(_bare(entry["uuid"]), entry["uuid"])
    return seen


def _try_torch(plan: Plan, env: Dict[str, str], visible: List[str]) -> List[Dict[str, Any]]:
    """A matrix product by the target's own torch on each GPU of the plan; keys of ``gpu.kernel``."""
    try:
        tried = _child([launcher.interpreter(plan), "-c", _torch_program()], env, plan, _TORCH_CHECK_TIMEOUT_S)
    except CheckError as error:
        tried = {"torch": None, "kernels": [], "error": str(error)}
    results = {visible[kernel["index"]]: kernel for kernel in tried["kernels"]}
    unseen = {"ok": False, "ms": None, "error": tried["error"] or "torch does not see this GPU"}
    kernels = []
    for gpu in plan.gpus:
        result = results.get(gpu.uuid, unseen)
        kernel = {"uuid": gpu.uuid, "kind": "torch", "torch": tried["torch"]}
        kernel.update((key, result[key]) for key in ("ok", "ms", "error"))
        kernels.append(kernel)
    return kernels


def _torch_program() -> str:
    data = pkgutil.get_data("seatrial.agent", "torch_check.py")
    if data is None:
        raise CheckError("the archive lacks torch_check.py")
    # -c puts the working directory first, where a json.py of the user may lie. (-I would lose PYTHONPATH, and torch.)
    return "import sys\nsys.path[:] = [folder for folder in sys.path if folder]\n" + data.decode()


def _child(argv: List[str], env: Dict[str, str], plan: Plan, timeout_s: float) -> Any:
    """The JSON object on the last line of a child's stdout. Raises CheckError."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=plan.workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise CheckError("the check of the GPUs did not end within %.0f s" % timeout_s) from None
    except OSError as error:
        raise CheckError("%s cannot be run: %s" % (argv[0], error.strerror)) from None
    try:
        return json.loads(done.stdout.splitlines()[-1].decode())
    except (IndexError, ValueError):
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise CheckError("the check of the GPUs died with exit code %d: %s" % (done.returncode, last)) from None


def _bare(uuid: str) -> str:
    """The UUID without GPU- or MIG-."""
    return uuid.split("-", 1)[-1].lower()

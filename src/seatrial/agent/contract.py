"""The GPU contract: the GPUs that CUDA sees are those of the plan, and each runs a kernel. Else nothing starts."""

import json
import pkgutil
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from seatrial.agent import failures, launcher
from seatrial.agent.journal import Journal
from seatrial.agent.plan import Plan
from seatrial.findings.finding import Finding
from seatrial.probe import nvml

#: The first cuInit on a machine with 8 GPUs takes seconds, the first import of torch from a cold disk minutes.
_DRIVER_CHECK_TIMEOUT_S = 120.0
_TORCH_CHECK_TIMEOUT_S = 300.0

#: sys.path is passed on: inside the archive its first entry is the archive itself.
_DRIVER_CHECK = "import sys; sys.path[:0] = [%r]; from seatrial.probe import cuda; cuda.main()"


class Outcome(NamedTuple):
    """``findings`` is empty when the contract holds. ``extra`` are GPUs that CUDA sees beyond the plan."""

    findings: List[Finding]
    extra: List[str]
    torch: Optional[Dict[str, Any]] = None


class CheckError(Exception):
    """A check could not even run; the text is one sentence."""


def check(plan: Plan, env: Dict[str, str], journal: Journal) -> Outcome:
    """See and try the GPUs in children that run with the target's environment, and write down what they found."""
    try:
        seen = _child([sys.executable, "-c", _DRIVER_CHECK % sys.path[0]], env, plan, _DRIVER_CHECK_TIMEOUT_S)
    except CheckError as error:
        seen = {"visible": [], "kernels": [], "cuda_driver": None, "error": str(error)}
    inventory = nvml.inventory()
    wanted = {_bare(gpu.uuid): gpu.uuid for gpu in plan.gpus}
    for gpu in seen["visible"] + seen["kernels"]:
        gpu["uuid"] = wanted.get(_bare(gpu["uuid"]), gpu["uuid"])  # CUDA does not say whether it is GPU- or MIG-
    visible = [gpu["uuid"] for gpu in seen["visible"]]
    missing = [gpu for gpu in plan.gpus if gpu.uuid not in visible]
    journal.write(
        "gpu.check",
        expected=[gpu.uuid for gpu in plan.gpus],
        visible=seen["visible"],
        driver=inventory.driver_version,
        cuda_driver=seen["cuda_driver"] or inventory.cuda_driver_version,
        ok=not missing,
        error=seen["error"] or inventory.error,
    )
    if missing:
        return Outcome([failures.missing(plan, seen, inventory, env)], [])
    findings = []
    if plan.check != "none":
        findings = _kernels(seen["kernels"], list(wanted.values()), journal)
    extra = [uuid for uuid in visible if uuid not in wanted.values()]
    if plan.check != "torch" or findings:
        return Outcome(findings, extra)
    return _torch(plan, env, visible, extra, journal)


def _kernels(kernels: List[Dict[str, Any]], wanted: List[str], journal: Journal) -> List[Finding]:
    """Write the kernels of the wanted GPUs; a finding for each that failed."""
    findings = []
    for kernel in kernels:
        if kernel["uuid"] not in wanted:
            continue
        journal.write("gpu.kernel", **kernel)
        if not kernel["ok"]:
            findings.append(failures.kernel_failed(kernel))
    return findings


def _torch(plan: Plan, env: Dict[str, str], visible: List[str], extra: List[str], journal: Journal) -> Outcome:
    """A matrix product by the target's own torch on each GPU."""
    python = launcher.interpreter(plan)
    try:
        tried = _child([python, "-c", _torch_program()], env, plan, _TORCH_CHECK_TIMEOUT_S)
    except CheckError as error:
        tried = {"torch": None, "kernels": [], "error": str(error)}
    results = {visible[kernel["index"]]: kernel for kernel in tried["kernels"]}
    findings: List[Finding] = []
    for uuid in (gpu.uuid for gpu in plan.gpus):
        result = results.get(uuid, {"ok": False, "ms": None, "error": tried["error"] or "torch does not see this GPU"})
        kernel = {"uuid": uuid, "kind": "torch", "torch": tried["torch"]}
        kernel.update({key: result[key] for key in ("ok", "ms", "error")})
        journal.write("gpu.kernel", **kernel)
        if not kernel["ok"]:
            findings.append(failures.torch_failed(kernel, python))
    return Outcome(findings[:1], extra, tried["torch"])


def _torch_program() -> str:
    data = pkgutil.get_data("seatrial.agent", "torch_check.py")
    if data is None:
        raise CheckError("the archive lacks torch_check.py")
    return data.decode()


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
    """The UUID without GPU- or MIG-: CUDA reports the same 16 bytes for either."""
    return uuid.split("-", 1)[-1].lower()

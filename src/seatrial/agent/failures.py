"""Broken GPU contracts in words: what was seen, the likely cause, the command that mends it. Pure functions."""

import os
from typing import Any, Dict, List

from seatrial.agent.plan import Plan
from seatrial.findings.finding import Finding
from seatrial.probe.nvml import Inventory


def missing(plan: Plan, seen: Dict[str, Any], inventory: Inventory, env: Dict[str, str]) -> Finding:
    """Expected GPUs that CUDA does not see.

    Args:
        seen: result of probe.cuda.check.
        env: the target's environment; CUDA_VISIBLE_DEVICES there can hide GPUs.
    """
    visible = [gpu["uuid"] for gpu in seen["visible"]]
    absent = [gpu.uuid for gpu in plan.gpus if gpu.uuid not in visible]
    message = "%d of %d expected GPUs cannot be used by CUDA: %s." % (len(absent), len(plan.gpus), ", ".join(absent))
    evidence = ["expected: " + ", ".join(gpu.uuid for gpu in plan.gpus), "CUDA sees: " + (", ".join(visible) or "none")]
    evidence += ["CUDA: " + seen["error"]] if seen["error"] else []
    evidence += ["NVML: " + inventory.error] if inventory.error else []
    evidence += ["NVML: " + fault for fault in inventory.faults]
    for id, applies, cause, fix in _causes(seen["error"] or "", inventory, env):
        if applies:
            return Finding(id, "error", message, cause, fix, evidence)
    cause = "The container was given other GPUs than the plan names, or the GPUs changed since it was made."
    return Finding("gpu-missing", "error", message, cause, "seatrial doctor", evidence)


def _causes(error: str, inventory: Inventory, env: Dict[str, str]) -> List[Any]:
    """(id, whether it applies, cause, fix), most telling first."""
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    return [
        (
            "libcuda-missing",
            "libcuda.so.1 cannot be loaded" in error,
            "The driver's libraries are not in the container: it was started without the GPU, or without the "
            '"compute" driver capability.',
            "seatrial doctor",
        ),
        (
            "uvm-node-missing",
            "(999)" in error and not os.path.exists("/dev/nvidia-uvm"),
            "/dev/nvidia-uvm is not here, and CUDA cannot start without it (measured: cuInit returns 999).",
            "sudo nvidia-modprobe -u -c=0",
        ),
        (
            "gpu-nodes-missing",
            bool(inventory.faults) or "(100)" in error,
            "The driver answers but the device nodes /dev/nvidiaN are not here or not readable.",
            "ls -l /dev/nvidia*; seatrial doctor",
        ),
        (
            "cuda-visible-devices",
            hidden is not None,
            "CUDA_VISIBLE_DEVICES=%s hides them; CUDA stops at the first entry that it does not know." % hidden,
            "unset CUDA_VISIBLE_DEVICES, or remove it from the image's ENV and from [env]",
        ),
        (
            "cuda-unavailable",
            bool(error),
            "CUDA does not start here: %s." % error,
            "seatrial doctor",
        ),
    ]


def kernel_failed(kernel: Dict[str, Any]) -> Finding:
    """A GPU that is visible but did not run the driver-level kernel."""
    error = kernel["error"]
    cause, fix = "The GPU or its driver does not work.", "sudo dmesg | grep -iE 'xid|nvrm'"
    if "(46)" in error:  # cuda.h: CUDA_ERROR_DEVICE_UNAVAILABLE
        cause = "Another process holds the GPU in exclusive mode, or MIG is on without an instance."
        fix = "nvidia-smi --query-gpu=compute_mode,mig.mode.current --format=csv"
    elif "(221)" in error:  # cuda.h: CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        cause = "libnvidia-ptxjitcompiler.so.1 is not in the container; without it CUDA runs no portable code."
        fix = "seatrial doctor"
    elif "(2)" in error:  # cuda.h: CUDA_ERROR_OUT_OF_MEMORY
        cause, fix = "Other processes have taken the GPU's memory.", "nvidia-smi"
    return Finding("gpu-kernel-failed", "error", "A kernel on %s failed." % kernel["uuid"], cause, fix, [error])


def torch_failed(kernel: Dict[str, Any], python: str) -> Finding:
    """A GPU that the driver can use and the target's torch cannot."""
    error, torch = kernel["error"], kernel["torch"] or {}
    evidence = [error]
    if torch:
        evidence.append("torch %s, CUDA %s, code for %s" % (torch["version"], torch["cuda"], torch["arch_list"]))
    message = "torch cannot use %s: %s." % (kernel["uuid"], error.rstrip("."))
    pip = "%s -m pip install --force-reinstall torch" % python
    if "CPU-only" in error:
        cause = "The torch that is installed was built without CUDA (a +cpu wheel)."
        return Finding("torch-cpu-only", "error", message, cause, pip, evidence)
    if "no kernel image" in error:
        cause = "This torch holds no code for this GPU's architecture."
        return Finding("torch-no-kernel-image", "error", message, cause, pip, evidence)
    if "driver on your system is too old" in error:
        cause = "This torch was built for a newer CUDA than the driver runs."
        return Finding("driver-too-old", "error", message, cause, "seatrial doctor", evidence)
    if "cannot be imported" in error:
        cause = "torch is not installed for %s, or its installation is broken." % python
        return Finding("torch-import-failed", "error", message, cause, "%s -m pip install torch" % python, evidence)
    cause = "torch's CUDA does not work here."
    return Finding("torch-cuda-failed", "error", message, cause, "seatrial doctor", evidence)

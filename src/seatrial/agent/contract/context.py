"""What surrounds a broken GPU contract: the facts from which seatrial.findings.contract tells the cause."""

import glob
import os
from typing import Any, Dict, List, Optional

from seatrial.agent.plan import Plan
from seatrial.findings.contract import explain_missing
from seatrial.findings.finding import Finding
from seatrial.probe.nvml import Inventory


def explain(
    plan: Plan,
    env: Dict[str, str],
    seen: Dict[str, Any],
    inventory: Inventory,
    kernel: Optional[Dict[str, Any]] = None,
) -> Finding:
    """Why GPUs of the plan are missing or, with the failed ``kernel``, unusable.

    Args:
        env: the target's environment.
        seen: result of probe.cuda.check.
        kernel: keys of the ``gpu.kernel`` event that failed.
    """
    context = {
        "device_nodes": _device_nodes(),
        "libcuda": seen["libcuda"],
        "cu_init": seen["cu_init"],
        "cuda_driver": seen["cuda_driver"],
        "nvml_error": inventory.error,
        "cuda_visible_devices": env.get("CUDA_VISIBLE_DEVICES"),
        "nvidia_visible_devices": env.get("NVIDIA_VISIBLE_DEVICES"),
        "nvidia_driver_capabilities": env.get("NVIDIA_DRIVER_CAPABILITIES"),
        "driver_version": inventory.driver_version,
        "mig": _mig(inventory),
        "injection": plan.injection,
    }
    if kernel is not None:
        context.update(kernel_error=kernel["error"], kernel_uuid=kernel["uuid"], torch=kernel["torch"])
        context["framework"] = kernel.get("framework")
    finding = explain_missing([gpu._asdict() for gpu in plan.gpus], seen["visible"], context)
    finding.evidence.extend([seen["error"]] if seen["error"] else [])
    finding.evidence.extend(inventory.faults)
    return finding


def _device_nodes() -> List[str]:
    """NVIDIA's names in /dev, and WSL's stand-in for them."""
    return [os.path.basename(path) for path in glob.glob("/dev/nvidia*") + glob.glob("/dev/dxg")]


def _mig(inventory: Inventory) -> Dict[str, Any]:
    return {
        "enabled": any(gpu.mig_enabled for gpu in inventory.gpus),
        "instances": sum(gpu.mig is not None for gpu in inventory.gpus),
    }

"""Layer 9, the framework: built for CUDA, for this driver and this GPU, and working on it."""

from __future__ import annotations

import re
from typing import Any

from packaging.version import Version

from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown, worst
from seatrial.doctor.checks.container import without_subject
from seatrial.doctor.machine import Machine
from seatrial.findings.device_code import covers
from seatrial.findings.gpu_missing import explain_missing
from seatrial.findings.match import match_text
from seatrial.stack.facts import minimum_driver, torch_index

_NO_CUDA = skipped("no torch with CUDA inside")

FRAMEWORK = Layer("framework", "Framework", needs="image.python", skips=without_subject)


def _torch(machine: Machine) -> dict[str, Any]:
    """Return torch's version and CUDA version; {} if it is not inside."""
    return machine.inspection.still["torch"] or {}


def _context(machine: Machine, torch: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"torch": torch, "driver_version": machine.inventory.driver_version, **more}


@FRAMEWORK.check("torch-build", "torch is built for CUDA", "torch-cpu-only", timeout_s=60)
def _torch_build(machine: Machine) -> Verdict:
    if not (torch := _torch(machine)):
        return skipped("no torch inside")
    if torch["cuda"] is None:
        evidence = [f"torch {torch['version']}: torch.version.cuda is None"]
        if not machine.inventory.gpus and not machine.gpus_on_bus:
            return found("torch-cpu-only", evidence, severity="warning")
        gpus = [gpu.model_dump() for gpu in machine.inspection.gpus]
        fix = explain_missing(gpus, gpus, _context(machine, torch)).fix
        return found("torch-cpu-only", evidence, severity="error", fix=fix)
    return ok(f"torch {torch['version']} is built with CUDA {torch['cuda']}")


@FRAMEWORK.check(
    "driver", "The driver is new enough for torch's CUDA", "driver-too-old", needs="framework.torch-build", timeout_s=60
)
def _driver(machine: Machine) -> Verdict:
    if (cuda := _torch(machine).get("cuda")) is None:
        return _NO_CUDA
    driver = machine.inventory.driver_version or machine.driver.version
    if driver is None:
        return unknown(f"torch needs a driver for CUDA {cuda}, but the driver's version is unknown")
    if Version(driver) < Version(needed := minimum_driver(cuda)):
        index = torch_index("cu126" if Version(driver) >= Version(minimum_driver("12.6")) else "cu118")
        fix = f"upgrade the driver, or pip install --force-reinstall torch --index-url {index}"
        evidence = [f"torch: CUDA {cuda}, needs driver {needed} or later", f"driver {driver}"]
        return found("driver-too-old", evidence, fix=fix)
    return ok(f"driver {driver} supports CUDA {cuda}")


@FRAMEWORK.check("cudnn", "One version of cuDNN", "cudnn-versions", timeout_s=60)
def _cudnn(machine: Machine) -> Verdict:
    facts = machine.inspection.still
    wheels = [version for name, version in facts["distributions"].items() if name.startswith("nvidia-cudnn")]
    by_version: dict[str, str] = {}
    for path in facts["libraries"]["cudnn"]:
        if named := re.search(r"\.so\.(\d+\.\d+\.\d+)", path):
            by_version.setdefault(named.group(1), path)
        elif "/nvidia/cudnn/lib/" in path and wheels:
            by_version.setdefault(".".join(wheels[0].split(".")[:3]), path)
    if len(by_version) > 1:
        evidence = [f"{version}: {path}" for version, path in sorted(by_version.items())]
        return found("cudnn-versions", evidence, severity="warning")
    return ok(f"only cuDNN {next(iter(by_version))}" if by_version else "no second cuDNN")


@FRAMEWORK.check(
    "others", "TensorFlow and JAX have their CUDA packages", "tensorflow-without-cuda jax-no-gpu", timeout_s=60
)
def _others(machine: Machine) -> Verdict:
    facts = machine.inspection.still
    dists: dict[str, str] = facts["distributions"]
    problems = []
    # A build of TensorFlow 2.14 or later takes CUDA from NVIDIA's packages; images of older ones have it in the system.
    cudnn = facts["libraries"]["cudnn"] or [name for name in dists if name.startswith("nvidia-cudnn")]
    if "tensorflow" in dists and not cudnn:
        evidence = [f"tensorflow {dists['tensorflow']}, no nvidia-cudnn package"]
        problems.append(found("tensorflow-without-cuda", evidence))
    if "jax" in dists and not any(re.match(r"jax-cuda\d+-plugin", name) for name in dists):
        problems.append(found("jax-no-gpu", [f"jax {dists['jax']}, no jax-cuda plug-in"]))
    names = [name for name in ("tensorflow", "jax") if name in dists]
    return worst(problems, f"{', '.join(names)} with CUDA") if names else skipped("neither TensorFlow nor JAX inside")


@FRAMEWORK.check(
    "architectures",
    "torch has code for the GPU",
    "no-kernel-image",
    needs="framework.driver container.gpus",
    timeout_s=90,
)
def _architectures(machine: Machine) -> Verdict:
    """Compare torch's list of architectures with the GPU's, without CUDA: is_available() is True either way."""
    if _torch(machine).get("cuda") is None:
        return _NO_CUDA
    torch = machine.inspection.types["torch"]
    if not torch or not torch["arch_list"]:
        return unknown("torch does not report which GPUs it has code for")
    problems = []
    for gpu in machine.inspection.gpus:
        if gpu.compute_capability and not covers(torch["arch_list"], gpu.compute_capability):
            error = "no kernel image is available for execution on the device"
            context = _context(machine, torch, kernel_error=error, kernel_uuid=gpu.uuid)
            finding = explain_missing([gpu.model_dump()], [gpu.model_dump()], context)
            problems.append(found(finding.id, finding.evidence, fix=finding.fix))
    return worst(problems, f"torch has code for this GPU ({' '.join(torch['arch_list'])})")


@FRAMEWORK.check(
    "types",
    "torch computes in every data type",
    "no-kernel-image no-cuda-device driver-too-old cuda-out-of-memory framework-cannot-compute",
    needs="framework.driver container.kernels",
    timeout_s=90,
)
def _types(machine: Machine) -> Verdict:
    """Compute a matrix product per number type per GPU, by the image's own torch."""
    if _torch(machine).get("cuda") is None:
        return _NO_CUDA
    result = machine.inspection.types
    failed = [kernel for kernel in result["kernels"] if not kernel["ok"]]
    if result["error"] or failed:
        errors = [result["error"]] if result["error"] else []
        errors += [f"{kernel['type']} on cuda:{kernel['index']}: {kernel['error']}" for kernel in failed]
        known = [finding for line in errors for finding in match_text(line) if finding.id != "cuda-error"]
        return found(known[0].id if known else "framework-cannot-compute", errors[:8], severity="error")
    if not result["kernels"]:
        return found("no-cuda-device", ["torch sees no device"])
    types = dict.fromkeys(kernel["type"] for kernel in result["kernels"])
    devices = {kernel["index"] for kernel in result["kernels"]}
    return ok(f"torch multiplies in {', '.join(types)} on {len(devices)} GPU{'s' * (len(devices) > 1)}")


@FRAMEWORK.check(
    "collective",
    "An NCCL all-reduce works between two ranks",
    "nccl-timeout nccl-shared-memory nccl-error",
    needs="framework.types container.shm",
    timeout_s=180,
)
def _collective(machine: Machine) -> Verdict:
    if len(machine.inspection.gpus) < 2:
        return skipped("one GPU needs no all-reduce")
    if _torch(machine).get("cuda") is None:
        return _NO_CUDA
    result = machine.inspection.collective
    if result["ok"]:
        return ok(f"two ranks all-reduced 64 MiB through NCCL, including startup, in {result['seconds']:g} s")
    lines = (result["error"] or "").splitlines()
    if result["hung"]:
        evidence = [f"no response within {result['seconds']:g} s", *lines[-3:]]
        if (result.get("without_p2p") or {}).get("ok"):
            evidence.append("with NCCL_P2P_DISABLE=1 it completes: peer-to-peer traffic hangs")
        return found("nccl-timeout", evidence)
    known = match_text(result["error"] or "")
    return found(known[0].id if known else "nccl-error", lines[-5:])

"""Layer 9, the framework: built for CUDA, for this driver and this GPU, and working on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from seatrial.doctor.check import Check, Verdict, found, ok, skipped, unknown, worst
from seatrial.doctor.checks.image import no_python
from seatrial.doctor.facts.machine import Machine
from seatrial.findings.device_code import covers
from seatrial.findings.gpu_missing import explain_missing
from seatrial.findings.match import match_text

#: CUDA major version → first driver branch that runs it. Minor versions are compatible: CUDA 12.8 runs on branch 525.
#: Source: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
FIRST_BRANCH = {11: 450, 12: 525, 13: 580}


def _inside(look: Callable[[Machine, dict[str, Any]], Verdict]) -> Callable[[Machine], Verdict]:
    """A look at the facts of the image's file system; where there are none, why."""

    def looked(machine: Machine) -> Verdict:
        inspection = machine.inspection
        if not inspection.is_process and inspection.reference is None:
            return skipped("no image to inspect")
        return no_python(machine) or look(machine, inspection.still)

    return looked


def _has_gpu(machine: Machine) -> bool:
    return bool(machine.inventory.gpus or machine.gpus_on_bus)


@_inside
def _torch_build(machine: Machine, facts: dict[str, Any]) -> Verdict:
    torch = facts["torch"]
    if torch is None:
        return skipped("no torch inside")
    if torch["cuda"] is None:
        severity = "error" if _has_gpu(machine) else "warning"
        evidence = [f"torch {torch['version']}: torch.version.cuda is None"]
        fix = (
            explain_missing(_expected(machine), _expected(machine), _context(machine, torch)).fix
            if _has_gpu(machine)
            else None
        )
        return found("torch-cpu-only", evidence, severity=severity, fix=fix)
    return ok(f"torch {torch['version']} is built with CUDA {torch['cuda']}")


def _expected(machine: Machine) -> list[dict[str, Any]]:
    return [gpu.model_dump() for gpu in machine.inspection.gpus]


def _context(machine: Machine, torch: dict[str, Any]) -> dict[str, Any]:
    return {"torch": torch, "driver_version": machine.inventory.driver_version}


@_inside
def _driver(machine: Machine, facts: dict[str, Any]) -> Verdict:
    cuda = (facts["torch"] or {}).get("cuda")
    if cuda is None:
        return skipped("no torch with CUDA inside")
    driver = machine.inventory.driver_version or machine.driver.version
    if driver is None:
        return unknown(f"torch needs a driver for CUDA {cuda}, but the driver's version is unknown")
    needed = FIRST_BRANCH.get(int(cuda.split(".")[0]))
    if needed is not None and int(driver.split(".")[0]) < needed:
        major = max((one for one, branch in FIRST_BRANCH.items() if branch <= int(driver.split(".")[0])), default=11)
        wheel = {11: "cu118", 12: "cu126"}.get(major, "cu126")
        fix = f"upgrade the driver, or pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}"
        return found(
            "driver-too-old", [f"torch: CUDA {cuda}, needs driver {needed} or later", f"driver {driver}"], fix=fix
        )
    return ok(f"driver {driver} supports CUDA {cuda}")


@_inside
def _architectures(machine: Machine, facts: dict[str, Any]) -> Verdict:
    """torch's list of architectures against the GPU's own, without starting CUDA: is_available() is True either way."""
    if (facts["torch"] or {}).get("cuda") is None:
        return skipped("no torch with CUDA inside")
    torch = machine.inspection.types["torch"]
    if not torch or not torch["arch_list"]:
        return unknown("torch does not report which GPUs it has code for")
    told = []
    for gpu in machine.inspection.gpus:
        if gpu.compute_capability and not covers(torch["arch_list"], gpu.compute_capability):
            context = {
                **_context(machine, torch),
                "kernel_error": "no kernel image is available for execution on the device",
                "kernel_uuid": gpu.uuid,
            }
            finding = explain_missing([gpu.model_dump()], [gpu.model_dump()], context)
            told.append(found(finding.id, finding.evidence, fix=finding.fix))
    return worst(told, f"torch has code for this GPU ({' '.join(torch['arch_list'])})")


@_inside
def _cudnn(machine: Machine, facts: dict[str, Any]) -> Verdict:
    by_version: dict[str, str] = {}
    for path in facts["libraries"]["cudnn"]:
        named = re.search(r"\.so\.(\d+\.\d+\.\d+)", path)
        version = named.group(1) if named else None
        if version is None and "/nvidia/cudnn/lib/" in path:
            dists = [v for name, v in facts["distributions"].items() if name.startswith("nvidia-cudnn")]
            version = ".".join(dists[0].split(".")[:3]) if dists else None
        if version is not None:
            by_version.setdefault(version, path)
    if len(by_version) > 1:
        return found(
            "cudnn-versions", [f"{version}: {path}" for version, path in sorted(by_version.items())], severity="warning"
        )
    return ok(f"only cuDNN {next(iter(by_version))}" if by_version else "no second cuDNN")


@_inside
def _others(machine: Machine, facts: dict[str, Any]) -> Verdict:
    dists: dict[str, str] = facts["distributions"]
    told = []
    # A build of TensorFlow 2.14 or later takes CUDA from NVIDIA's packages; images of older ones have it in the system.
    cudnn = facts["libraries"]["cudnn"] or [name for name in dists if name.startswith("nvidia-cudnn")]
    if "tensorflow" in dists and not cudnn:
        told.append(found("tensorflow-without-cuda", [f"tensorflow {dists['tensorflow']}, no nvidia-cudnn package"]))
    if "jax" in dists and not any(re.match(r"jax-cuda\d+-plugin", name) for name in dists):
        told.append(found("jax-no-gpu", [f"jax {dists['jax']}, no jax-cuda plug-in"]))
    names = [name for name in ("tensorflow", "jax") if name in dists]
    if not names:
        return skipped("neither TensorFlow nor JAX inside")
    return worst(told, f"{', '.join(names)} with CUDA")


@_inside
def _types(machine: Machine, facts: dict[str, Any]) -> Verdict:
    """A matrix product per number type per GPU, by the image's own torch."""
    if (facts["torch"] or {}).get("cuda") is None:
        return skipped("no torch with CUDA inside")
    result = machine.inspection.types
    failed = [kernel for kernel in result["kernels"] if not kernel["ok"]]
    if result["error"] or failed:
        said = [result["error"]] if result["error"] else []
        said += [f"{kernel['type']} on cuda:{kernel['index']}: {kernel['error']}" for kernel in failed]
        known = [finding for line in said for finding in match_text(line) if finding.id != "cuda-error"]
        return found(known[0].id if known else "framework-cannot-compute", said[:8], severity="error")
    if not result["kernels"]:
        return found("no-cuda-device", ["torch sees no device"])
    types = dict.fromkeys(kernel["type"] for kernel in result["kernels"])
    devices = {kernel["index"] for kernel in result["kernels"]}
    return ok(f"torch multiplies in {', '.join(types)} on {len(devices)} GPU{'s' * (len(devices) > 1)}")


@_inside
def _collective(machine: Machine, facts: dict[str, Any]) -> Verdict:
    if len(machine.inspection.gpus) < 2:
        return skipped("one GPU needs no all-reduce")
    if (facts["torch"] or {}).get("cuda") is None:
        return skipped("no torch with CUDA inside")
    result = machine.inspection.collective
    if result["ok"]:
        return ok(f"two ranks all-reduced 64 MiB through NCCL, including startup, in {result['seconds']:g} s")
    if result["hung"]:
        alone = (result.get("without_p2p") or {}).get("ok")
        evidence = [f"no response within {result['seconds']:g} s", *(result["error"] or "").splitlines()[-3:]]
        if alone:
            evidence.append("with NCCL_P2P_DISABLE=1 it completes: peer-to-peer traffic hangs")
        return found("nccl-timeout", evidence)
    known = match_text(result["error"] or "")
    return found(known[0].id if known else "nccl-error", (result["error"] or "").splitlines()[-5:])


FRAMEWORK = (
    Check(
        "framework.torch-build",
        "torch is built for CUDA",
        ("torch-cpu-only",),
        _torch_build,
        needs=("image.python",),
        timeout_s=60,
    ),
    Check(
        "framework.driver",
        "The driver is new enough for torch's CUDA",
        ("driver-too-old",),
        _driver,
        needs=("framework.torch-build",),
        timeout_s=60,
    ),
    Check(
        "framework.cudnn", "One version of cuDNN", ("cudnn-versions",), _cudnn, needs=("image.python",), timeout_s=60
    ),
    Check(
        "framework.others",
        "TensorFlow and JAX have their CUDA packages",
        ("tensorflow-without-cuda", "jax-no-gpu"),
        _others,
        needs=("image.python",),
        timeout_s=60,
    ),
    Check(
        "framework.architectures",
        "torch has code for the GPU",
        ("no-kernel-image",),
        _architectures,
        needs=("framework.driver", "container.gpus"),
        timeout_s=90,
    ),
    Check(
        "framework.types",
        "torch computes in every data type",
        ("no-kernel-image", "no-cuda-device", "driver-too-old", "cuda-out-of-memory", "framework-cannot-compute"),
        _types,
        needs=("framework.driver", "container.kernels"),
        timeout_s=90,
    ),
    Check(
        "framework.collective",
        "An NCCL all-reduce works between two ranks",
        ("nccl-timeout", "nccl-shared-memory", "nccl-error"),
        _collective,
        needs=("framework.types", "container.shm"),
        timeout_s=180,
    ),
)

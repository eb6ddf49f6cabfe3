"""Each broken link of the chain, as the agent sees it, → its cause and the command that fixes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from seatrial.findings.catalogue import by_id
from seatrial.findings.gpu_missing import cut_down, explain_missing

H200 = {"uuid": "GPU-de421f49", "index": 0, "name": "NVIDIA H200", "minor": 0, "compute_capability": "9.0"}
SECOND = {**H200, "uuid": "GPU-5c1e77aa", "index": 1, "minor": 1}
RTX5090 = {**H200, "uuid": "GPU-50900000", "name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}
V100 = {**H200, "uuid": "GPU-70000000", "name": "Tesla V100", "compute_capability": "7.0"}

#: A container in order, as measured on an H200.
GOOD: dict[str, Any] = {
    "device_nodes": ["nvidia0", "nvidiactl", "nvidia-uvm"],
    "libcuda": "libcuda.so.1",
    "cu_init": 0,
    "cuda_driver": "13.0",
    "nvml_error": None,
    "cuda_visible_devices": None,
    "nvidia_visible_devices": None,
    "nvidia_driver_capabilities": "compute,utility",
    "driver_version": "580.159.04",
    "mig": {"enabled": False, "instances": 0},
    "injection": "nvidia-runtime",
}
TORCH = {"version": "2.13.0+cu130", "cuda": "13.0", "arch_list": ["sm_80", "sm_90", "sm_100"]}
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": None, "arch_list": []}

#: name → (expected finding, expected GPUs, visible GPUs, what differs from GOOD)
CASES: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]] = {
    "no nodes": ("device-nodes-missing", [H200], [], {"device_nodes": [], "libcuda": None, "cu_init": None}),
    "no nodes with CDI": ("device-nodes-missing", [H200], [], {"device_nodes": [], "injection": "cdi"}),
    "no nodes, nothing known": ("device-nodes-missing", [H200], [], {"device_nodes": [], "injection": None}),
    "told to pass none": (
        "nvidia-visible-devices", [H200], [], {"device_nodes": [], "nvidia_visible_devices": "void"},
    ),
    "node of the second GPU": ("device-node-missing", [H200, SECOND], [], {"cu_init": 100}),
    "node of the only GPU": ("device-node-missing", [H200], [], {"device_nodes": ["nvidiactl", "nvidia-uvm"]}),
    # Seen on an H200 with the node withheld: the strategy itself had set the variable.
    "node withheld where the plan keeps the runtime out": (
        "device-node-missing", [H200], [],
        {"device_nodes": ["nvidiactl", "nvidia-uvm"], "injection": "device-nodes", "nvidia_visible_devices": "void"},
    ),
    "no uvm": (
        "uvm-node-missing", [H200], [], {"device_nodes": ["nvidia0", "nvidiactl"], "cu_init": 999},
    ),
    "no uvm with CDI": (
        "uvm-node-missing", [H200], [], {"device_nodes": ["nvidia0", "nvidiactl"], "cu_init": 999, "injection": "cdi"},
    ),
    "no libcuda": ("libcuda-missing", [H200], [], {"libcuda": None, "cu_init": None}),
    "capabilities without compute": (
        "capabilities-lack-compute", [H200], [],
        {"libcuda": None, "cu_init": None, "nvidia_driver_capabilities": "utility"},
    ),
    "cuInit 999 with all nodes": ("cuda-unknown-error", [H200], [], {"cu_init": 999}),
    "fabric manager": ("fabric-manager-not-ready", [H200], [], {"cu_init": 802}),
    "driver and library differ": ("driver-library-mismatch", [H200], [], {"cu_init": 803}),
    "forward compatibility": ("forward-compatibility", [H200], [], {"cu_init": 804}),
    "NVML: mismatch": (
        "driver-library-mismatch", [H200], [], {"cu_init": 999, "nvml_error": "Driver/library version mismatch"},
    ),
    "NVML: cgroup": ("device-access-lost", [H200], [], {"cu_init": 100, "nvml_error": "Unknown Error"}),
    "NVML: permission": ("device-permission", [H200], [], {"cu_init": 100, "nvml_error": "Insufficient Permissions"}),
    "NVML: lost": ("gpu-lost", [H200], [], {"cu_init": 100, "nvml_error": "GPU is lost"}),
    "hidden by an empty variable": ("cuda-visible-devices", [H200], [], {"cu_init": 100, "cuda_visible_devices": ""}),
    "hidden by all": ("cuda-visible-devices", [H200], [], {"cu_init": 100, "cuda_visible_devices": "all"}),
    "one of two hidden": ("cuda-visible-devices", [H200, SECOND], [H200], {
        "device_nodes": [*GOOD["device_nodes"], "nvidia1"], "cuda_visible_devices": "0"}),
    "the variable names it": (
        "gpus-unusable", [H200], [], {"cu_init": 100, "cuda_visible_devices": H200["uuid"]},
    ),
    "MIG without instances": (
        "mig-no-instances", [H200], [], {"cu_init": 100, "mig": {"enabled": True, "instances": 0}},
    ),
    "other GPU": ("other-gpus", [H200], [SECOND], {}),
    "fewer GPUs": ("gpus-missing", [H200, SECOND], [H200], {}),
    "CPU-only torch": (
        "torch-cpu-only", [H200], [H200], {"torch": CPU_TORCH, "kernel_error": "torch 2.13.0+cpu is a CPU-only build"},
    ),
    "CPU-only torch, older driver": (
        "torch-cpu-only", [H200], [H200], {"torch": CPU_TORCH, "kernel_error": "x", "driver_version": "535.129.03"},
    ),
    "no code for a new GPU": ("no-kernel-image", [RTX5090], [RTX5090], {
        "torch": TORCH, "kernel_uuid": RTX5090["uuid"],
        "kernel_error": "CUDA error: no kernel image is available for execution on the device"}),
    "no code for an old GPU": ("no-kernel-image", [V100], [V100], {
        "torch": TORCH, "kernel_uuid": V100["uuid"],
        "kernel_error": "CUDA error: no kernel image is available for execution on the device"}),
    "no code for a new GPU, older driver": ("no-kernel-image", [RTX5090], [RTX5090], {
        "torch": TORCH, "kernel_uuid": RTX5090["uuid"], "driver_version": "570.86.15",
        "kernel_error": "CUDA error: no kernel image is available for execution on the device"}),
    "driver too old": ("driver-too-old", [H200], [H200], {
        "torch": TORCH, "driver_version": "535.129.03", "cuda_driver": "12.2",
        "kernel_error": "torch cannot start CUDA: The NVIDIA driver on your system is too old (found version 12020)."}),
    "exclusive": ("compute-mode-exclusive", [H200], [H200], {
        "torch": TORCH, "kernel_uuid": H200["uuid"],
        "kernel_error": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"}),
    "full": ("gpu-memory-held", [H200], [H200], {
        "torch": TORCH, "kernel_uuid": H200["uuid"], "kernel_error": "CUDA error: out of memory"}),
    "unknown kernel error": ("gpus-unusable", [H200], [H200], {
        "torch": TORCH, "kernel_uuid": H200["uuid"], "kernel_error": "CUDA error: something new"}),
    "unknown": ("gpus-unusable", [H200], [], {"cu_init": 100}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_causes(name: str, snapshot: SnapshotAssertion) -> None:
    id, expected, visible, differs = CASES[name]
    finding = explain_missing(expected, visible, {**GOOD, **differs})
    assert finding.id == id
    assert finding.severity == "error"
    assert finding.to_dict() == snapshot


def test_on_a_node_of_a_cluster_it_is_containerd_that_is_reported() -> None:
    """Pods are started by containerd or CRI-O, not by the submitter's engine."""
    for lacking in ({"device_nodes": []}, {"libcuda": None, "cu_init": None}):
        finding = explain_missing([H200], [], {**GOOD, **lacking, "injection": "device-plugin"})
        assert "--runtime=containerd" in str(finding.fix) and "docker" not in str(finding.fix)


def test_under_wsl_there_are_no_nodes_to_miss() -> None:
    finding = explain_missing([H200], [], {**GOOD, "device_nodes": ["dxg"], "libcuda": None})
    assert finding.id == "libcuda-missing"


facts = st.dictionaries(st.sampled_from([*GOOD, "kernel_error", "kernel_uuid", "torch"]), st.none())
gpus = st.lists(st.sampled_from([H200, SECOND, {"uuid": "MIG-1"}]), max_size=2)


@given(gpus, gpus, facts, st.sampled_from([{}, GOOD]))
def test_facts_may_be_missing(expected: Any, visible: Any, unknown: Any, known: Any) -> None:
    finding = explain_missing(expected, visible, {**known, **unknown})
    assert by_id(finding.id)
    assert finding.fix


def test_a_title_has_the_values_that_the_framework_printed() -> None:
    printed = "JAX_PLATFORMS=cpu,rocm keeps JAX away from the GPU"
    finding = explain_missing([H200], [H200], {**GOOD, "kernel_error": printed, "kernel_uuid": H200["uuid"]})
    assert finding.message == printed and finding.severity == "error"


@pytest.mark.parametrize(
    ("kept", "capability", "runs"),
    [
        ("", "9.0", True), ("9.0", "9.0", True), ("8.0", "8.9", True), ("7.5 9.0", "9.0", True), ("9.0", None, True),
        ("8.0", "9.0", False), ("8.9", "8.0", False), ("9.0", "12.0", False), ("9.0 12.0", "10.0", False),
    ],
)  # fmt: skip
def test_an_image_that_was_cut_down_refuses_other_gpus_by_name(kept: str, capability: str | None, runs: bool) -> None:
    first, gpu = ({"uuid": "GPU-1", "name": "NVIDIA Thing", "compute_capability": cc} for cc in (None, capability))
    finding = cut_down(kept, [first, gpu])
    assert (finding is None) == runs
    if finding is not None:
        assert finding.id == "image-cut-down" and finding.message.endswith(f"only, and NVIDIA Thing is {capability}")

"""Each broken link of the chain, as the agent sees it, → its cause and the command that fixes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from seatrial.findings.catalogue import by_id
from seatrial.findings.gpu_missing import cut_down, explain_missing
from tables import cases

H200 = {"uuid": "GPU-de421f49", "index": 0, "name": "NVIDIA H200", "minor": 0, "compute_capability": "9.0"}
SECOND = {**H200, "uuid": "GPU-5c1e77aa", "index": 1, "minor": 1}
RTX5090 = {**H200, "uuid": "GPU-50900000", "name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}
V100 = {**H200, "uuid": "GPU-70000000", "name": "Tesla V100", "compute_capability": "7.0"}
GPUS = {"H200": H200, "SECOND": SECOND, "RTX5090": RTX5090, "V100": V100}

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


@cases("finding", "expected", "visible", "facts", "unknown")
def test_causes(
    finding: str, expected: Any, visible: Any, facts: Any, unknown: Any, snapshot: SnapshotAssertion
) -> None:
    differs = {**(facts or {}), **dict.fromkeys(unknown or ())}
    if "torch" in differs:
        differs["torch"] = {"TORCH": TORCH, "CPU_TORCH": CPU_TORCH}[differs["torch"]]
    found = explain_missing([GPUS[name] for name in expected], [GPUS[name] for name in visible], {**GOOD, **differs})
    assert (found.id, found.severity) == (finding, "error") and found.to_dict() == snapshot


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

"""The checker of manifests notices what an API server would refuse, on manifests of ours that are made wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_plans import DDP, MODERN, a_cluster_plan, rendered
from manifest_rules import CRDS, violations

pytestmark = pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs are not beside the repository")


def _workload(folder: Path, kind: str) -> dict[str, Any]:
    options = {"kind": kind, "models": "pvc:models"}
    plan = a_cluster_plan(folder, MODERN, script=DDP, nodes="2", gpus="1", kubernetes=options)
    return rendered(plan)[-1]


def _patched_pod(manifest: dict[str, Any]) -> dict[str, Any]:
    [job] = manifest["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    spec: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return spec


def _same_volume_twice(manifest: dict[str, Any]) -> None:
    mounts = _patched_pod(manifest)["containers"][0]["volumeMounts"]
    mounts.append({"name": mounts[0]["name"], "mountPath": "/elsewhere"})


def _two_patches_of_one_manager(manifest: dict[str, Any]) -> None:
    manifest["spec"]["runtimePatches"] *= 2


def _name_with_a_digit_first(manifest: dict[str, Any]) -> None:
    manifest["metadata"]["name"] = "1st-run"


def _name_too_long(manifest: dict[str, Any]) -> None:
    manifest["metadata"]["name"] = "x" * 64


def _managed_by_a_stranger(manifest: dict[str, Any]) -> None:
    manifest["spec"]["managedBy"] = "example.com/me"


def _no_runtime(manifest: dict[str, Any]) -> None:
    del manifest["spec"]["runtimeRef"]


def _unknown_key(manifest: dict[str, Any]) -> None:
    _patched_pod(manifest)["priorityClassName"] = "high"


def _no_quantity(manifest: dict[str, Any]) -> None:
    manifest["spec"]["trainer"]["resourcesPerNode"]["requests"]["cpu"] = "two"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_same_volume_twice, "duplicate name: config"),
        (_two_patches_of_one_manager, "duplicate manager: seatrial"),
        (_no_runtime, "'runtimeRef' is a required property"),
        (_unknown_key, "priorityClassName"),
        (_no_quantity, "'two' does not match"),
    ],
)
def test_a_trainjob_that_would_be_refused(tmp_path: Path, spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    manifest = _workload(tmp_path, "trainjob")
    assert violations(manifest) == []
    spoil(manifest)
    assert any(words in line for line in violations(manifest))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_name_with_a_digit_first, "RFC 1035"),
        (_name_too_long, "no more than 63"),
        (_managed_by_a_stranger, "ManagedBy must be"),
    ],
)
def test_rules_in_cel(tmp_path: Path, spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    pytest.importorskip("celpy", reason="cel-python is not installed")
    manifest = _workload(tmp_path, "trainjob")
    spoil(manifest)
    assert any(words in line for line in violations(manifest))


def test_a_pytorchjob_with_a_key_of_nobodys(tmp_path: Path) -> None:
    manifest = _workload(tmp_path, "pytorchjob")
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["priority"] = "high"
    assert violations(manifest)


def test_a_list_of_a_core_kind_that_is_a_map(tmp_path: Path) -> None:
    manifest = _workload(tmp_path, "job")
    assert violations(manifest) == []
    containers = manifest["spec"]["template"]["spec"]["containers"]
    containers.append(dict(containers[0]))
    assert violations(manifest) == ["$.spec.template.spec.containers: duplicate name: train"]


def test_a_kind_without_a_schema_is_not_waved_through() -> None:
    with pytest.raises(LookupError):
        violations({"kind": "MPIJob", "apiVersion": "kubeflow.org/v2beta1"})

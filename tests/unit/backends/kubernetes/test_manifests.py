"""Manifests: golden texts of every kind, valid for every version of Kubernetes since 1.25 and for the CRDs."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator
from syrupy.assertion import SnapshotAssertion

from cluster_plans import DDP, KUBEFLOW, MODERN, OLD, a_cluster_plan
from seatrial.backends.kubernetes.manifests.render import MAX_CONFIG_MAP_BYTES, as_yaml, render
from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.errors import UsageError

CRDS = Path(__file__).parents[5] / "shared" / "k8s" / "crds"
VERSIONS = [f"1.{minor}" for minor in range(25, int(kubernetes_validate.latest_version().split(".")[1]) + 1)]
BINARIES = {"agent.pyz": b"the agent"}

POOL = {
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
    "tolerations": ["team=vision:NoSchedule"],
    "data": "pvc:mnist/train",
    "models": "pvc:models",
    "service_account": "trainer",
    "image_pull_secrets": ["ghcr"],
    "ttl": "1h",
}
CLASSES = {"priority_class": "research", "runtime_class": "nvidia"}

CASES: dict[str, tuple[ClusterFacts, dict[str, Any]]] = {
    "one-cpu-pod": (MODERN, {"gpus": "none"}),
    "indexed-gpus": (
        MODERN,
        {
            "gpus": "2",
            "nodes": "2",
            "script": DDP,
            "cpus": "8",
            "memory": "64GB",
            "name": "baseline",
            "secrets": ["HF_TOKEN"],
            "env": {"EPOCHS": "3"},
            "kubernetes": {**POOL, **CLASSES},
        },
    ),
    "a-job-a-node": (OLD, {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": {"models": "hostpath:/models"}}),
    "pytorchjob": (KUBEFLOW, {"gpus": "1", "nodes": "3", "script": DDP, "kubernetes": {**POOL, **CLASSES}}),
    "pytorchjob-elastic": (
        KUBEFLOW,
        {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": {"min_nodes": 1, "models": "pvc:models"}},
    ),
    "trainjob": (KUBEFLOW, {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": {**POOL, "kind": "trainjob"}}),
}


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    facts, flags = CASES[request.param]
    return render(a_cluster_plan(tmp_path, facts, **flags), BINARIES)


def test_golden(manifests: list[dict[str, Any]], snapshot: SnapshotAssertion) -> None:
    manifests[0]["data"]["plan.json"] = "(test_the_agent_comes_with_its_plan looks at it)"
    manifests[0]["metadata"]["annotations"] = {"seatrial.content": "(a hash of it)"}
    assert as_yaml(manifests, whole=False) == snapshot


def test_yaml_reads_back(manifests: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(as_yaml(manifests))) == manifests


def test_valid_for_kubernetes(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["apiVersion"] in ("v1", "batch/v1"):
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs are not beside the repository")
def test_valid_for_the_operators(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] in ("PyTorchJob", "TrainJob"):
            errors = list(Draft7Validator(_schema(manifest)).iter_errors(manifest))
            assert not errors, errors[0].message


@pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs are not beside the repository")
def test_a_wrong_key_is_noticed(tmp_path: Path) -> None:
    [*_, manifest] = render(a_cluster_plan(tmp_path, KUBEFLOW, script=DDP, nodes="2", gpus="1"), BINARIES)
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["priority"] = "high"
    assert list(Draft7Validator(_schema(manifest)).iter_errors(manifest))


def _schema(manifest: dict[str, Any]) -> dict[str, Any]:
    name = {"PyTorchJob": "kubeflow.org_pytorchjobs", "TrainJob": "trainer.kubeflow.org_trainjobs"}[manifest["kind"]]
    crd = yaml.load((CRDS / f"{name}.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [one for one in crd["spec"]["versions"] if one["storage"]]
    return _closed(version["schema"]["openAPIV3Schema"])


def _closed(schema: Any) -> Any:
    """Unknown keys are errors, as ``fieldValidation: Strict`` has it; the API server's int-or-string is understood."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
        closed.pop("pattern", None)
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        preserved = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("description", "").startswith(
            "APIV"
        )
        free = preserved or schema["properties"].keys() <= {"apiVersion", "kind"} or not schema["properties"]
        closed["additionalProperties"] = True if free else {"not": {}}
    return closed


def test_the_agent_comes_with_its_plan(tmp_path: Path) -> None:
    [config, *_] = render(a_cluster_plan(tmp_path, gpus="2", nodes="2", script=DDP), BINARIES)
    assert base64.b64decode(config["binaryData"]["agent.pyz"]) == b"the agent"
    agent = yaml.safe_load(config["data"]["plan.json"])["agent"]
    assert (agent["gpu_count"], agent["gpu_mode"], agent["evidence_dir"]) == (2, "required", None)
    assert (agent["nodes"], agent["processes"], agent["node_rank_variable"]) == (2, 2, "JOB_COMPLETION_INDEX")
    assert str(tmp_path) not in config["data"]["plan.json"]


def test_a_script_too_large_for_a_config_map(tmp_path: Path) -> None:
    large = "#" * MAX_CONFIG_MAP_BYTES
    with pytest.raises(UsageError, match="under 1 MiB") as raised:
        a_cluster_plan(tmp_path, gpus="none", script=large, kubernetes={"code": "configmap"})
    assert 'code = "image"' in (raised.value.run or "")
    plan = a_cluster_plan(tmp_path, gpus="none", script=large)
    assert plan.cluster is not None and plan.cluster.code == "image"
    assert any(choice.reason == "too large for a ConfigMap" for choice in plan.choices)


def test_binaries_too_large_for_a_config_map(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="under 1 MiB"):
        render(a_cluster_plan(tmp_path, gpus="none"), {"agent.pyz": b"x" * MAX_CONFIG_MAP_BYTES})


def test_an_operator_that_acts_is_taken_and_a_bare_crd_is_not(tmp_path: Path) -> None:
    idle = replace(KUBEFLOW, idle=("pytorchjob",))
    for facts, kind, warned in ((KUBEFLOW, "pytorchjob", False), (idle, "trainjob", False)):
        plan = a_cluster_plan(tmp_path, facts, gpus="1")
        assert plan.cluster is not None and plan.cluster.kind == kind
        assert any("never be processed" in warning for warning in plan.warnings) is warned
    asked = a_cluster_plan(tmp_path, idle, gpus="1", kubernetes={"kind": "pytorchjob"})
    assert any("no Deployment training-operator" in warning for warning in asked.warnings)


def test_what_a_trainjob_cannot_say(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, KUBEFLOW, gpus="1", kubernetes={"kind": "trainjob", **CLASSES})
    with pytest.raises(UsageError, match="priority_class"):
        render(plan, BINARIES)


def test_what_steers_the_loader_is_the_targets_and_not_pid_1s(tmp_path):
    plan = a_cluster_plan(tmp_path, env={"LD_PRELOAD": "/workspace/evil.so", "PYTHONPATH": "lib", "LEVEL": "3"})
    assert plan.cluster is not None
    assert "LD_PRELOAD" not in plan.cluster.env and "PYTHONPATH" not in plan.cluster.env
    assert plan.agent.env["LD_PRELOAD"] == "/workspace/evil.so" and plan.agent.env["PYTHONPATH"] == "lib"
    assert plan.cluster.env["LEVEL"] == "3"

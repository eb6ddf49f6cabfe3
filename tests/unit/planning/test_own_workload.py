"""A workload of the user's own, planned and rendered: the agent in front of its command, all else as it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_plans import MODERN, rendered
from fakes import load_job
from manifest_rules import VERSIONS, violations
from planning_sites import a_site
from seatrial.backends.kubernetes.survey import ClusterFacts, Node, read_pod
from seatrial.errors import ConfigError
from seatrial.job.model import Target
from seatrial.job.own_workload import read_own
from seatrial.job.plan import Plan
from seatrial.job.script import source_facts
from seatrial.planning.plan import make_plan
from seatrial.system.project_files import parse_yaml

TEMPLATE = """
        metadata: {annotations: {sidecar.istio.io/inject: "true"}}
        spec:
          nodeSelector: {pool: gpu}
          containers:
          - name: pytorch
            image: pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime
            command: [python3, /app/train.py]
            env: [{name: CUDA_VISIBLE_DEVICES, value: "0"}]
            resources: {requests: {cpu: 4, nvidia.com/gpu: 1}, limits: {cpu: 8, nvidia.com/gpu: 1}}
            volumeMounts: [{name: code, mountPath: /app}, {name: out, mountPath: /app/models}]
          volumes: [{name: code, configMap: {name: code}}, {name: out, hostPath: {path: /tmp/models}}]
"""
PYTORCH = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: mine}\nspec:\n  pytorchReplicaSpecs:\n"
    f"    Master:\n      replicas: 1\n      restartPolicy: OnFailure\n      template:{TEMPLATE}"
    f"    Worker:\n      replicas: 1\n      restartPolicy: OnFailure\n      template:{TEMPLATE}"
)
JOB = (
    "apiVersion: batch/v1\nkind: Job\nmetadata: {name: mine}\nspec:\n      backoffLimit: 2\n"
    f"      template:{TEMPLATE.replace('nodeSelector', 'restartPolicy: Never' + chr(10) + ' ' * 10 + 'nodeSelector')}"
)
SCRIPT = """
import os, torch
torch.save({}, '/app/models/model.pth')
torch.load('/input/a')
with open('/output/metadata.txt', 'w') as file:
    file.write('done')
"""


def planned(project: Path, text: str, facts: ClusterFacts = MODERN) -> Plan:
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "job.yaml").write_text(text)
    own, flags = read_own(project / "job.yaml", project, {})
    job = load_job(project, flags, cwd=project)
    job = job.changed(own=own, target=Target(kind="image", value="", args=own.argv))
    return make_plan(job, a_site("k8s", project.parent, project, cluster=facts), source_facts(job))


def nodes(product: str, capability: str, **labels: str) -> ClusterFacts:
    major, minor = capability.split(".")
    known = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.compute.major": major, "pool": "gpu", **labels}
    node = Node("gpu-1", 8, 8, ready=True, labels={**known, "nvidia.com/gpu.compute.minor": minor})
    return replace(MODERN, nodes=(node,))


@pytest.mark.parametrize("text", [PYTORCH, JOB])
def test_only_the_agent_is_added_and_the_file_is_left_alone(tmp_path: Path, text: str) -> None:
    plan = planned(tmp_path / "project", text)
    *maps, workload = rendered(plan)
    assert [one["kind"] for one in maps] == ["ConfigMap"]
    stripped: dict[str, Any] = copy.deepcopy(workload)
    assert stripped["metadata"].pop("labels")["seatrial.run"] and stripped["metadata"].pop("namespace") == "default"
    spec = stripped["spec"]
    for one in [spec] if "template" in spec else spec["pytorchReplicaSpecs"].values():
        template = one["template"]
        pod, [container] = template["spec"], template["spec"]["containers"]
        assert template["metadata"].pop("labels")["seatrial.run"] == plan.run_id
        template["metadata"]["annotations"].pop("kubectl.kubernetes.io/default-container")
        assert [volume["name"] for volume in pod["volumes"][2:]] == ["seatrial-config", "seatrial-scratch"]
        assert pod["volumes"][2]["configMap"]["name"] == maps[0]["metadata"]["name"]
        del pod["volumes"][2:], container["volumeMounts"][2:]
        assert container["command"][-2:] == ["/seatrial/config/agent.pyz", "/seatrial/config/plan.json"]
        assert container.pop("args") == ["--", *plan.agent.argv]
        container["command"] = list(plan.agent.argv)
    assert stripped == parse_yaml(text, "job.yaml")
    assert text != JOB or not any(violations(workload, version) for version in VERSIONS)
    assert plan.agent.argv == ("python3", "/app/train.py") and plan.agent.gpu_count == 1 and plan.agent.check == "torch"


def test_each_pod_gets_its_own_words_and_its_kubelet_fills_in_what_only_the_pod_knows(tmp_path: Path) -> None:
    master = PYTORCH.replace("/app/train.py]", "--rank=$(JOB), $(CUDA_VISIBLE_DEVICES), $$(x), /app/train.py]", 1)
    plan = planned(tmp_path / "project", master)
    sets = rendered(plan)[-1]["spec"]["pytorchReplicaSpecs"]
    words = [sets[name]["template"]["spec"]["containers"][0]["args"] for name in ("Master", "Worker")]
    written = ["--rank=$(JOB)", "$(CUDA_VISIBLE_DEVICES)", "$$(x)"]
    assert words == [["--", "python3", *written, "/app/train.py"], ["--", "python3", "/app/train.py"]]
    assert plan.agent.argv == ("python3", "--rank=$(JOB)", "0", "$(x)", "/app/train.py")


def test_aliases_are_values_of_their_own(tmp_path: Path) -> None:
    """Each template gets the agent once, as if it had been written twice."""
    anchored = PYTORCH.replace("Master:\n", "Master: &pods\n", 1)
    text = anchored[: anchored.index("    Worker:")] + "    Worker: *pods\n"
    twice, written = (planned(tmp_path / name, each) for name, each in (("a", text), ("b", PYTORCH)))
    specs = [rendered(plan)[-1]["spec"]["pytorchReplicaSpecs"]["Worker"] for plan in (twice, written)]
    for each in specs:
        del each["template"]["metadata"]["labels"], each["template"]["spec"]["volumes"][2]
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "too many",
        ),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99)), "nested too deep"),
        ("a: &a [*a]\n", "no value has this anchor before it"),
    ],
)
def test_aliases_are_counted_before_they_are_built(lines: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_yaml(lines, "job.yaml")


def test_what_is_wrong_in_the_file_is_named(tmp_path: Path) -> None:
    warnings = planned(tmp_path / "project", PYTORCH, nodes("NVIDIA-H100-80GB-HBM3", "9.0")).warnings
    old, hidden, host_path, unread, unkept = warnings
    assert "1.13.1-cuda11.6-cudnn8-runtime is too old for the GPU: torch 1.13.1+cu116 has code for" in old
    assert old.endswith("sm_86, but NVIDIA-H100-80GB-HBM3 is sm_90")
    assert "sets CUDA_VISIBLE_DEVICES=0: the device plugin" in hidden
    assert host_path.startswith("/app/models: a hostPath is")
    assert "train.py:4 reads /input/a, which no volume of the pod has; the file mounts /app, /app/models" in unread
    assert "train.py:5" in unkept and "/output/metadata.txt, and no volume keeps that" in unkept


def test_nothing_is_wrong_with_a_current_image_and_a_claim_but_an_old_driver(tmp_path: Path) -> None:
    text = PYTORCH.replace("1.13.1-cuda11.6-cudnn8", "2.5.1-cuda12.4-cudnn9").replace("CUDA_VISIBLE_DEVICES", "EPOCHS")
    text = text.replace("hostPath: {path: /tmp/models}", "persistentVolumeClaim: {claimName: out}")
    text = text.replace(
        "mountPath: /app/models}",
        "mountPath: /app/models}, {name: out, mountPath: /output}, {name: code, mountPath: /input}",
    )
    assert planned(tmp_path / "project", text, nodes("NVIDIA-H100-80GB-HBM3", "9.0")).warnings == ()
    facts = nodes("Tesla-T4", "7.5", **{"nvidia.com/cuda.driver-version.full": "470.223.02"})
    [warning] = planned(tmp_path / "old", text, facts).warnings
    assert "needs driver 525" in warning


def test_the_container_is_found_next_to_one_that_the_cluster_adds() -> None:
    annotations = {"kubectl.kubernetes.io/default-container": "trainer"}
    meta = {"name": "mine", "uid": "1", "creationTimestamp": "2026-11-27T08:00:00Z", "annotations": annotations}
    states = {"istio-proxy": {"running": {}}, "trainer": {"terminated": {"exitCode": 7}}}
    listed = [{"name": name, "state": state} for name, state in states.items()]
    status = {"phase": "Running", "containerStatuses": listed}
    pod = read_pod({"metadata": meta, "spec": {"containers": listed}, "status": status})
    assert (pod.container, pod.exit_code) == ("trainer", 7)

"""A JobSet: when auto takes it, that its Job is the one that a run has alone, and that everything reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_plans import DDP, JOBSET, KUBEFLOW, a_cluster_plan
from manifest_rules import VERSIONS, violations
from seatrial.backends.kubernetes.backend import _workload_paths
from seatrial.backends.kubernetes.cleanup import reasons
from seatrial.backends.kubernetes.manifests.names import rendezvous
from seatrial.backends.kubernetes.manifests.render import render
from seatrial.backends.kubernetes.pods import end_of, read_pod, state_of, workload_state
from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.backends.kubernetes.workload import explain_workload, is_of_run, waiting_for
from seatrial.errors import UsageError

TWO = {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": {"models": "pvc:models"}}


def _workload(folder: Path, facts: ClusterFacts, **flags: Any) -> dict[str, Any]:
    return render(a_cluster_plan(folder, facts, **{**TWO, **flags}), {"agent.pyz": b"x"})[-1]


@pytest.mark.parametrize(
    ("facts", "nodes", "kind", "because"),
    [
        (JOBSET, "2", "JobSet", "the cluster has the CRD of jobset"),
        (JOBSET, "1", "Job", "a JobSet is for several nodes"),
        (KUBEFLOW, "2", "PyTorchJob", "the cluster has the CRD of pytorchjob"),
        (replace(KUBEFLOW, idle=("pytorchjob", "trainjob")), "2", "JobSet", "its controller is not"),
        (replace(JOBSET, idle=("jobset",)), "2", "Job", "the CRD of jobset is installed, but its controller is not"),
        (replace(JOBSET, forbidden=("jobset",)), "2", "Job", "you may not create jobsets in default"),
        (replace(KUBEFLOW, forbidden=("pytorchjob", "trainjob")), "2", "JobSet", "may not create pytorchjobs"),
    ],
)
def test_when_auto_takes_it(tmp_path: Path, facts: ClusterFacts, nodes: str, kind: str, because: str) -> None:
    plan = a_cluster_plan(tmp_path, facts, **{**TWO, "nodes": nodes})
    assert render(plan, {"agent.pyz": b"x"})[-1]["kind"] == kind
    assert because in next(choice.reason for choice in plan.choices if choice.what == "kind")


def test_on_a_cluster_of_trainer_it_says_what_a_trainjob_cannot(tmp_path: Path) -> None:
    trainer = replace(KUBEFLOW, operators=("trainjob", "jobset"))
    both = {"models": "pvc:all/models", "data": "pvc:all/data", "priority_class": "high"}
    assert _workload(tmp_path, trainer)["kind"] == "TrainJob"
    assert _workload(tmp_path, trainer, kubernetes=both)["kind"] == "JobSet"


def test_its_job_is_the_one_that_a_run_has_alone(tmp_path: Path) -> None:
    jobset = _workload(tmp_path, JOBSET)
    alone = _workload(tmp_path, JOBSET, kubernetes={"models": "pvc:models", "kind": "job"})["spec"]
    [replicated] = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    same = [key for key in alone if key not in ("ttlSecondsAfterFinished", "template")]
    assert {key: job[key] for key in same} == {key: alone[key] for key in same}
    assert "podFailurePolicy" in same and job["template"]["spec"]["restartPolicy"] == "Never"
    assert "subdomain" not in job["template"]["spec"] and "ttlSecondsAfterFinished" not in job
    assert "failurePolicy" not in jobset["spec"], "a restart of the set would delete pods with their logs"


def test_pods_meet_at_the_name_that_the_controller_gives(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, JOBSET, **TWO)
    assert plan.cluster is not None
    assert rendezvous(plan.cluster) == f"{plan.cluster.name}-node-0-0.{plan.cluster.name}:29400"
    assert plan.agent.node_rank_variable == "JOB_COMPLETION_INDEX"
    kinds = [manifest["kind"] for manifest in render(plan, {"agent.pyz": b"x"})]
    assert "Service" not in kinds, "the controller makes one of the same name"
    assert _workload_paths(plan.cluster) == [
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{plan.cluster.name}"
    ]


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_it_would_be_taken_and_a_wrong_one_would_not(tmp_path: Path, version: str) -> None:
    manifest = _workload(tmp_path, JOBSET)
    assert violations(manifest, version) == []
    manifest["metadata"]["name"] = "x" * 55
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "two"
    manifest["spec"]["ttl"] = 1
    wrong = " ".join(violations(manifest, version))
    assert "no DNS label" in wrong and "parallelism" in wrong and "unknown key ttl" in wrong


def test_asked_for_and_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no jobsets\.jobset\.x-k8s\.io") as raised:
        a_cluster_plan(tmp_path, replace(JOBSET, operators=()), **{**TWO, "kubernetes": {"kind": "jobset"}})
    assert "--kind job" in (raised.value.run or "") and "jobset/releases" in (raised.value.run or "")


def _set(*conditions: tuple[str, str], suspend: bool = False) -> dict[str, Any]:
    told = [{"type": kind, "status": status, "message": f"jobset {kind}"} for kind, status in conditions]
    status = {"conditions": told, "restarts": 0} if conditions else {"restarts": 0}
    labels = {"seatrial.run": "r1", "app.kubernetes.io/managed-by": "seatrial"}
    meta = {"name": "seatrial-r1", "labels": labels, "creationTimestamp": "2026-11-22T10:00:00Z"}
    return {"metadata": meta, "spec": {"suspend": suspend}, "status": status}


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ([("StartupPolicyInProgress", "True")], "active"),
        ([("Suspended", "False"), ("Completed", "True")], "done"),
        ([("Completed", "False"), ("Failed", "True")], "failed"),
        ([("RestartingJobSet", "True")], "active"),
    ],
)
def test_its_end_is_read(conditions: list[tuple[str, str]], verdict: str) -> None:
    assert workload_state([_set(*conditions)], 1) == verdict
    ended = end_of(_set(*conditions)["status"])
    assert (ended is not None) == (verdict in ("done", "failed"))


def test_its_pods_are_numbered() -> None:
    meta = {
        "name": "seatrial-r1-node-0-1-x7k2p",
        "uid": "u",
        "creationTimestamp": "2026-11-22T10:00:00Z",
        "labels": {"batch.kubernetes.io/job-completion-index": "1", "jobset.sigs.k8s.io/job-index": "0"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "1", "jobset.sigs.k8s.io/job-global-index": "0"},
    }
    pod = read_pod({"metadata": meta, "spec": {}, "status": {"phase": "Running"}})
    assert pod.node == 1
    before = {**meta, "labels": {}, "annotations": {}, "name": "seatrial-r1-node-0-1-x7k2p"}
    assert read_pod({"metadata": before}).node == 1
    assert state_of([pod], 2, "active").status == "created"


def test_what_holds_it_back_is_told() -> None:
    held = {
        "involvedObject": {"kind": "JobSet", "name": "seatrial-r1"},
        "type": "Normal",
        "reason": "SuspendedJobs",
        "message": "jobset is suspended",
    }
    quota = {
        "involvedObject": {"kind": "Job", "name": "seatrial-r1-node-0"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'Error creating: pods "seatrial-r1-node-0-0-" is forbidden: exceeded quota: gpus, requested: …',
    }
    refused = {
        "involvedObject": {"kind": "JobSet", "name": "seatrial-r1"},
        "type": "Warning",
        "reason": "JobCreationFailed",
        "message": 'job "seatrial-r1-node-0" creation failed with error: jobs.batch is forbidden',
    }
    for event, word in ((held, "suspended"), (quota, "quota"), (refused, "pods are refused")):
        assert is_of_run(event["involvedObject"], "seatrial-r1")  # type: ignore[arg-type]
        assert explain_workload(event) is not None
        assert waiting_for([], 2, [_set(suspend=event is held)], [event]) == word
    assert not is_of_run({"kind": "Job", "name": "seatrial-r12-node-0"}, "seatrial-r1")


def test_cleanup_leaves_one_that_waits() -> None:
    now = 1.8e9
    assert reasons({"JobSet": [_set(suspend=True)]}, now) == {}
    assert reasons({"JobSet": [_set(("Failed", "True"))]}, now) == {"r1": "its JobSet says Failed: jobset Failed"}

"""A real cluster that ends an unfinished run: the receipt and the Job report it as stopped, never done."""

from __future__ import annotations

import json

import pytest

from cli_project import Project
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.survey import survey

pytestmark = pytest.mark.kubernetes

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"

#: Answers SIGTERM with 0, unfinished.
ANSWERS = (
    "import signal, sys, time\n"
    "def save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\n"
)


@pytest.fixture
def project(cluster_project: Project) -> Project:
    return cluster_project


def verdict(cluster: Cluster, run_id: str) -> list[str]:
    """Conditions of the run's Job that hold."""
    [job] = cluster.get(JOBS, labelSelector=f"seatrial.run={run_id}")["items"]
    return [one["type"] for one in job["status"].get("conditions") or [] if one["status"] == "True"]


def check_stopped(project: Project) -> None:
    [line] = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert (line["status"], line["exit_code"]) == ("stopped", 1), line
    project.cli("runs", "show", "last", exit_code=1)
    cause = project.receipt()["exit_cause"]
    assert cause["id"] == "stopped" and "the target exited with 0, but had not finished" in cause["words"]
    assert project.output() == "ready\nsaved\n"


def test_a_run_without_a_volume_that_is_requested_to_end_is_not_done(project: Project, cluster: Cluster) -> None:
    """Send SIGTERM to the container's first process, as a kubelet does."""
    project.write("train.py", ANSWERS + "time.sleep(300)\n")
    run_id = project.run("train.py", "--gpus", "none", "--detach").stdout.strip()
    project.wait_for(lambda: "ready" in project.cli("runs", "logs", run_id).stdout)
    project.cli("runs", "exec", run_id, "--", "sh", "-c", "kill -TERM 1", exit_code=None)
    project.wait_for(lambda: verdict(cluster, run_id) == ["Failed"])
    check_stopped(project)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "eviction"])
def test_a_pod_that_is_taken_away(project: Project, cluster: Cluster, how: str) -> None:
    """From Kubernetes 1.26 on the Job has failed; before, it forgets the pod and begins anew."""
    project.write("train.py", ANSWERS + "time.sleep(300)\n")
    attached = project.start("train.py", "--gpus", "none", "--name", "taken")
    project.wait_for_output("ready")
    run_id = project.last.name
    [pod] = cluster.get(PODS, labelSelector=f"seatrial.run={run_id}")["items"]
    name = pod["metadata"]["name"]
    if how == "deleted":
        cluster.delete(f"{PODS}/{name}")
    else:
        modern = cluster.find("/apis/policy/v1") is not None
        body = {"kind": "Eviction", "metadata": {"name": name}, "apiVersion": f"policy/v1{'' if modern else 'beta1'}"}
        cluster.create(f"{PODS}/{name}/eviction", body)
    project.wait_for(lambda: "saved" in project.output() and project.events("agent.finished"))
    assert [event["exit_code"] for event in project.events("agent.finished")] == [143]
    if survey(cluster).disruptions_free:
        attached.communicate(timeout=240)
        check_stopped(project)
        return
    project.wait_for(lambda: project.output().count("ready") == 2)
    assert json.loads(project.cli("runs", "ls", "--json").stdout)[0]["status"] == "running"
    project.cli("runs", "stop", run_id)
    _, err = attached.communicate(timeout=240)
    assert f"{name} is being deleted; its target received SIGTERM" in err
    assert project.receipt()["exit_cause"]["id"] == "stopped"

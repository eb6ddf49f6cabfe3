"""Attacks around a run on a real cluster: on what acts on it, and on what else is in its namespace.

What a script tries from inside its pod is in test_inside.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks_harness import IMAGE, READY, Canaries, intact, receipt, record
from cli_project import Project
from seatrial.backends.kubernetes.client import Cluster

pytestmark = pytest.mark.kubernetes

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WAITS = "import time; print('ready', flush=True); time.sleep(120)"


@pytest.fixture
def project(tmp_path: Path, cluster_environ: dict[str, str]) -> Iterator[Project]:
    made = Project(tmp_path / "project", "k8s", cluster_environ)
    made.write("seatrial.toml", READY)
    yield made
    made.clean()


@pytest.fixture
def stranger(cluster: Cluster) -> Iterator[str]:
    """Name of a Job that is nobody's run."""
    create(cluster, "stranger")
    yield "stranger"
    cluster.delete(f"{JOBS}/stranger", grace_s=0)


def create(cluster: Cluster, name: str) -> None:
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "x", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"]}],
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": pod}}}
    cluster.create(JOBS, job)


def is_there(cluster: Cluster, name: str) -> bool:
    found = cluster.find(f"{JOBS}/{name}")
    return found is not None and "deletionTimestamp" not in found["metadata"]


def test_a_handle_acts_on_its_own_job_alone(project: Project, cluster: Cluster, stranger: str) -> None:
    project.write("train.py", WAITS)
    project.run("train.py", "--gpus", "none", "--detach")
    path = record(project).folder / "handle.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "id": stranger}))
    project.cli("runs", "stop", "last", "--kill", exit_code=None)
    project.cli("runs", "rm", "--force", "last", exit_code=None)
    assert is_there(cluster, stranger)


def test_a_job_that_took_the_runs_name_is_not_touched(project: Project, cluster: Cluster) -> None:
    project.write("train.py", WAITS)
    run_id = project.run("train.py", "--gpus", "none", "--detach").stdout.strip()
    name = f"seatrial-{run_id}"
    cluster.delete(f"{JOBS}/{name}", grace_s=0)
    project.wait_for(lambda: cluster.find(f"{JOBS}/{name}") is None)
    create(cluster, name)
    try:
        project.cli("runs", "stop", "last", "--kill", exit_code=None)
        project.cli("runs", "rm", "--force", "last", exit_code=None)
        assert is_there(cluster, name)
    finally:
        cluster.delete(f"{JOBS}/{name}", grace_s=0)


def test_a_run_without_its_handle_is_found_and_ended(project: Project, cluster: Cluster) -> None:
    """Restore the state after kill -9 between the Job's creation and the record."""
    project.write("train.py", WAITS)
    run_id = project.run("train.py", "--gpus", "none", "--detach").stdout.strip()
    (record(project).folder / "handle.json").unlink()
    [line] = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert line["status"] == "running"
    project.cli("runs", "stop", "last", exit_code=None)
    assert not is_there(cluster, f"seatrial-{run_id}")
    assert receipt(project)["exit_cause"]["id"] == "stopped"
    intact(project)


def test_another_pod_cannot_write_into_the_runs_evidence(project: Project, cluster: Cluster) -> None:
    """A second run in the same namespace, of the same user and script, that prints frames in the first one's name."""
    project.write("train.py", "import time; print('ready', flush=True); time.sleep(8); raise SystemExit(7)")
    first = project.run("train.py", "--gpus", "none", "--detach").stdout.strip()
    forged = {"t": 1, "type": "target.exited", "source": "agent", "exit_code": 0, "run_id": first, "_seq": 3}
    project.write("other.py", f"print('\\x1e' + {json.dumps(forged)!r}, flush=True)")
    project.run("other.py", "--gpus", "none")
    project.cli("runs", "logs", first, "--follow", exit_code=None)
    project.cli("runs", "show", first, exit_code=1)
    reported = receipt(project, first)
    assert reported["exit_cause"]["target_exit_code"] == 7 and reported["seal"]["missing"] == 0
    intact(project, first)


#: Lines of a seatrial.toml that reach into the cluster, and a word of the message.
ASKS = {
    "a folder of the nodes": ('data = "hostpath:/"', "nodes"),
    "another's namespace": ('namespace = "kube-system"', "kube-system"),
    "another's cluster": ('context = "prod"', "prod"),
    "another's volume": ('models = "pvc:theirs"', "theirs"),
    "another's nodes": ('tolerations = ["node-role.kubernetes.io/master"]', "master"),
    "another's turn": ('priority_class = "system-node-critical"', "critical"),
    "another's rights": ('service_account = "admin"', "admin"),
    "another's registry": ('image_pull_secrets = ["theirs"]', "theirs"),
}


@pytest.mark.parametrize("name", list(ASKS))
def test_what_a_project_asks_of_the_cluster_is_not_given_silently(
    project: Project, cluster: Cluster, tmp_path: Path, name: str
) -> None:
    victim = Canaries.plant(tmp_path)
    before = victim.digest()
    project.trusted = False
    line, word = ASKS[name]
    project.write("seatrial.toml", f"{READY}[kubernetes]\n{line}\n")
    project.write("train.py", "print('it ran')")
    refused = project.run("train.py", "--gpus", "none", exit_code=2)
    assert word in refused.stderr and "--trust" in refused.stderr
    assert project.runs == [] and victim.digest() == before
    assert not [job for job in cluster.get(JOBS)["items"] if job["metadata"]["name"].startswith("seatrial-")]

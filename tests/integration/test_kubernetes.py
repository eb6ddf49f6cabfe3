"""Kubernetes for real: a cluster on this machine, from ``run`` to the receipt."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_project import Project
from engines import report_gpus
from pace import until
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.objects import RESOURCES
from seatrial.errors import SeatrialError

pytestmark = pytest.mark.kubernetes

SHARED = Path(__file__).parents[3] / "shared" / "k8s"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def project(cluster_project: Project) -> Project:
    return cluster_project


def left(cluster: Cluster) -> list[str]:
    """Names of all that carries our label."""
    found = []
    for kind in ("ConfigMap", "Secret", "Service", "Job"):
        base, plural = RESOURCES[kind]
        listing = cluster.get(
            f"{base}/namespaces/default/{plural}", labelSelector="app.kubernetes.io/managed-by=seatrial"
        )
        found += [item["metadata"]["name"] for item in listing["items"]]
    return found


def wait_until_nothing_is_left(cluster: Cluster, timeout_s: float = 300) -> None:
    until(lambda: not left(cluster), lambda: left(cluster), timeout_s)


def test_a_script_in_a_config_map(project: Project, cluster: Cluster) -> None:
    project.write(
        "train.py",
        "import getpass, json, os, sys\n"
        "print('out', getpass.getuser(), os.getuid(), os.environ['NVIDIA_VISIBLE_DEVICES'], *sys.argv[1:])\n"
        "print('err', file=sys.stderr)\n"
        "print('hidden', os.environ['HF_TOKEN'])\n"
        "open('result.txt', 'w').write('x')\n"
        "with open(os.environ['SEATRIAL_EVENTS'], 'a') as events:\n"
        "    print(json.dumps({'step': 1, 'loss': 0.5, 'token': os.environ['HF_TOKEN']}), file=events)\n"
        "print('x' * 20000)\n",
    )
    ended = project.run("train.py", "--gpus", "none", "--secret", "HF_TOKEN", "--", "--epochs", "5", HF_TOKEN="s3cr3t")
    long_line = "x" * 20000
    expected = f"out seatrial 1234 void --epochs 5\nhidden [redacted]\n{long_line}\n"
    assert project.output() == expected and ended.stdout.startswith(expected)
    assert project.output("stderr") == "err\n"
    receipt = project.receipt()
    assert (receipt["exit_code"], receipt["exit_cause"]["id"], receipt["header"]["backend"]) == (0, "finished", "k8s")
    assert [metric["name"] for metric in receipt["measurements"]["metrics"]] == ["loss"]
    for file in project.last.iterdir():
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file
    wait_until_nothing_is_left(cluster)
    again = project.cli("runs", "logs", "last", KUBECONFIG="/nowhere")  # a finalised run is only its folder
    assert again.stdout.startswith("out seatrial")


def test_a_run_is_left_found_entered_and_stopped(project: Project, cluster: Cluster) -> None:
    project.write(
        "train.py",
        "import signal, sys, time\n"
        "def save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(300)\n",
    )
    project.run("train.py", "--gpus", "none", "--detach", "--name", "held")
    project.wait_for(lambda: "ready" in project.cli("runs", "logs", "held").stdout)
    [line] = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert (line["status"], line["backend"], line["name"]) == ("running", "k8s", "held")
    assert project.cli("runs", "exec", "held", "--", "sh", "-c", "id -u; exit 7", exit_code=7).stdout == "1234\n"
    project.cli("runs", "stop", "held", exit_code=None)
    assert project.output() == "ready\nsaved\n"
    assert project.receipt()["exit_cause"]["id"] == "stopped"
    wait_until_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("script", "flags", "cause", "code"),
    [
        ("import sys; print('bad', file=sys.stderr); sys.exit(7)", [], "script-error", 1),
        ("x = b'x' * 500_000_000", ["--memory", "96MB"], "host-oom", 1),
    ],
    ids=["exit-code", "memory"],
)
def test_a_script_that_fails(project: Project, script: str, flags: list[str], cause: str, code: int) -> None:
    project.write("train.py", script)
    project.run("train.py", "--gpus", "none", *flags, exit_code=code)
    assert project.receipt()["exit_cause"]["id"] == cause


def test_no_gpus_then_gpus_that_are_none(project: Project, cluster: Cluster) -> None:
    """Pending with the reason; with faked capacity it schedules, and the agent finds no GPU: exit 3."""
    project.write("train.py", "print('never')")
    project.run("train.py", "--gpus", "2", "--detach", "--name", "pending")
    project.wait_for(lambda: project.cli("runs", "logs", "pending") and project.events("finding"))
    [finding] = project.events("finding")
    assert finding["id"] == "k8s-no-gpu-resource", finding
    project.run("train.py", "--gpus", "2", "--require-capacity", exit_code=3)
    project.cli("runs", "stop", "pending", exit_code=None)
    report_gpus(cluster, "1")
    try:
        ended = project.run("train.py", "--gpus", "2", "--require-capacity", exit_code=3)
        assert "test-node, has 1" in ended.stderr
        project.run("train.py", "--gpus", "1", exit_code=3)
        receipt = project.receipt()
        assert receipt["exit_cause"]["id"] == "gpu-contract", receipt["exit_cause"]
        assert "never" not in project.output()
    finally:
        report_gpus(cluster, None)


def test_an_image_that_is_nowhere(project: Project, cluster: Cluster) -> None:
    project.write("train.py", "print('never')")
    project.run("train.py", "--gpus", "none", "--image", "registry.invalid/none:1", "--detach", "--name", "image")
    project.wait_for(lambda: project.cli("runs", "logs", "image") and project.events("finding"))
    assert project.events("finding")[0]["id"] in ("k8s-image-pull", "k8s-registry-unreachable")
    project.cli("runs", "stop", "image", exit_code=None)
    wait_until_nothing_is_left(cluster)


def test_bad_input(project: Project, tmp_path: Path) -> None:
    project.write("train.py", "print('never')")
    cases = [
        (["--kind", "pytorchjob"], "no pytorchjobs.kubeflow.org", {}),
        (["--namespace", "nowhere"], "Namespace nowhere not found", {}),
        (["--context", "nowhere"], "no context nowhere", {}),
        ([], "KUBECONFIG names /nowhere", {"KUBECONFIG": "/nowhere"}),
        (["--data", str(tmp_path)], "folder of this machine", {}),
        (["--nodes", "2"], "nodes independently", {}),
        (["--nodes", "a,b"], "Kubernetes --nodes takes a number", {}),
    ]
    for flags, prints, variables in cases:
        ended = project.run("train.py", "--gpus", "none", *flags, exit_code=None, **variables)
        assert ended.returncode in (2, 5) and prints in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr and ended.stderr.count("fix:") <= 1


def test_expired_credentials(project: Project, tmp_path: Path, kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "expired"
    (tmp_path / "expired").write_text(yaml.dump(config))
    project.write("train.py", "print('never')")
    ended = project.run("train.py", "--gpus", "none", exit_code=5, KUBECONFIG=str(tmp_path / "expired"))
    assert "rejected these credentials" in ended.stderr


def test_with_exactly_the_role_of_the_docs(
    project: Project, cluster: Cluster, kubeconfig: Path, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "seatrial"}}
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    role, binding = yaml.safe_load_all((DOCS / "kubernetes-role.yaml").read_text())
    binding["subjects"][0]["namespace"] = "default"
    cluster.create(accounts, account)
    cluster.create(f"{rbac}/roles", role)
    cluster.create(f"{rbac}/rolebindings", binding)
    try:
        config = yaml.safe_load(kubeconfig.read_text())
        config["users"][0]["user"]["token"] = _token(cluster, accounts)
        (tmp_path / "namespaced").write_text(yaml.dump(config))
        own = {"KUBECONFIG": str(tmp_path / "namespaced")}
        project.write("train.py", "print('allowed')")
        ended = project.run("train.py", "--gpus", "none", **own)
        assert project.output() == "allowed\n" and "no permission to list nodes" in ended.stderr
        cluster.delete(f"{rbac}/roles/seatrial")
        ended = project.run("train.py", "--gpus", "none", exit_code=5, **own)
        assert re.search(r"Permission is missing: create \w+ in the namespace default", ended.stderr), ended.stderr
    finally:
        cluster.delete(f"{rbac}/rolebindings/seatrial")
        cluster.delete(f"{rbac}/roles/seatrial")
        cluster.delete(f"{accounts}/seatrial")


def _token(cluster: Cluster, accounts: str) -> str:
    """Return the token of the account's Secret, which controllers before 1.24 create."""
    secrets = until(lambda: cluster.get(f"{accounts}/seatrial").get("secrets"))
    secret = cluster.get(f"/api/v1/namespaces/default/secrets/{secrets[0]['name']}")
    return base64.b64decode(secret["data"]["token"]).decode()


@pytest.fixture(scope="session")
def operators(cluster: Cluster) -> Iterator[None]:
    """The CRDs of Kubeflow's operators, without validation: this API server is older than their rules."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name in ("kubeflow.org_pytorchjobs", "trainer.kubeflow.org_trainjobs"):
        crd = yaml.load((SHARED / "crds" / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
        for version in crd["spec"]["versions"]:
            version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        crd.pop("status", None)
        if cluster.find(f"{path}/{crd['metadata']['name']}") is None:
            cluster.create(path, crd)
    until(lambda: all(_served(cluster, group) for group in ("kubeflow.org/v1", "trainer.kubeflow.org/v1alpha1")))
    yield
    for name in ("pytorchjobs.kubeflow.org", "trainjobs.trainer.kubeflow.org"):
        cluster.delete(f"{path}/{name}")


def _served(cluster: Cluster, group: str) -> bool:
    try:
        return cluster.find(f"/apis/{group}") is not None
    except SeatrialError:
        return False


@pytest.mark.skipif(not SHARED.is_dir(), reason="the CRDs are not next to the repository")
@pytest.mark.parametrize(("kind", "name"), [("pytorchjob", "PyTorchJob"), ("trainjob", "TrainJob")])
def test_operators_objects(project: Project, cluster: Cluster, operators: None, kind: str, name: str) -> None:
    """No operator acts here: the object is accepted, read back, and goes with the run."""
    project.write("train.py", "import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    run_id = project.run("train.py", "--gpus", "none", "--nodes", "2", "--kind", kind, "--detach").stdout.strip()
    base, plural = RESOURCES[name]
    path = f"{base}/namespaces/default/{plural}/seatrial-{run_id}"
    stored: dict[str, Any] = cluster.get(path)
    assert stored["metadata"]["labels"]["seatrial.run"] == run_id
    config = cluster.get(f"/api/v1/namespaces/default/configmaps/seatrial-{run_id}-config")
    assert [owner["kind"] for owner in config["metadata"]["ownerReferences"]] == [name]
    assert cluster.patch(path, {"metadata": {"annotations": {"a": "b"}}})["metadata"]["annotations"] == {"a": "b"}
    project.cli("runs", "rm", "--force", run_id)
    assert cluster.find(path) is None
    wait_until_nothing_is_left(cluster)


OWN = """apiVersion: batch/v1
kind: Job
metadata: {name: my-own}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: trainer
        image: python:3.11-slim-bookworm
        command: [python3, -c]
        args: ["import os; print('epochs', os.environ['EPOCHS'], os.getuid()); open('/out/m', 'w').write('x'); CODE"]
        env: [{name: EPOCHS, value: "3"}]
        volumeMounts: [{name: out, mountPath: /out}]
      volumes: [{name: out, emptyDir: {}}]
"""


def test_a_job_of_the_users_own_runs_as_it_is_and_gets_a_receipt(project: Project, cluster: Cluster) -> None:
    project.write("seatrial.toml", "")
    for code, (cause, exit_code) in {"": ("finished", 0), "raise SystemExit(7)": ("script-error", 1)}.items():
        text = OWN.replace("CODE", code)
        project.write("job.yaml", text)
        ended = project.run("-f", "job.yaml", exit_code=exit_code)
        assert "epochs 3 0" in ended.stdout, ended.stderr
        assert project.receipt()["exit_cause"]["id"] == cause
        assert (project.folder / "job.yaml").read_text() == text
        wait_until_nothing_is_left(cluster)

"""A cluster's storage for real: models on a claim, compared settings, a project's image through a registry."""

from __future__ import annotations

import json
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import CONFIG, Project
from engines import CLUSTER, IMAGE, READY
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.kubernetes.client import Cluster

pytestmark = pytest.mark.kubernetes

VOLUMES, CLAIMS = "/api/v1/persistentvolumes", "/api/v1/namespaces/default/persistentvolumeclaims"


@pytest.fixture
def project(cluster_project: Project) -> Project:
    return cluster_project


@pytest.fixture
def claim(tmp_path: Path, cluster: Cluster) -> Iterator[tuple[str, Path]]:
    """A claim's name, and the node's folder behind it."""
    # A name of its own: a volume whose pod has not gone yet is deleted only then.
    folder, name = tmp_path / "volume", f"test-models-{secrets.token_hex(3)}"
    folder.mkdir()
    folder.chmod(0o777)
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}, "storageClassName": name}
    wanted = {"accessModes": modes, "storageClassName": name, "resources": {"requests": size}}
    for path, kind, spec in ((VOLUMES, "PersistentVolume", volume), (CLAIMS, "PersistentVolumeClaim", wanted)):
        cluster.create(path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    yield name, folder
    cluster.delete(f"{CLAIMS}/{name}")
    cluster.delete(f"{VOLUMES}/{name}")


def test_settings_are_compared_and_models_fetched_from_a_claim(
    project: Project, claim: tuple[str, Path], tmp_path: Path
) -> None:
    name, folder = claim
    project.write("seatrial.toml", f'{READY}{CLUSTER}models = "pvc:{name}/alice"\n')
    project.write(
        "train.py",
        "import argparse, json, os\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
        "lr = parser.parse_args().lr\nopen(f'/models/{lr}.pt', 'w').write('weights')\n"
        "with open(os.environ['SEATRIAL_EVENTS'], 'a') as events:\n"
        "    print(json.dumps({'step': 1, 'loss': lr * 2}), file=events)\n",
    )
    words = ("sweep", "train.py", "--set", "lr=0.1,0.3", "--on", "k8s", "--gpus", "none", "--parallel", "2", "--json")
    table = json.loads(project.cli(*words).stdout)
    results = table["results"] if isinstance(table, dict) else table
    assert [(one["settings"]["lr"], one["metrics"]["loss"], one["exit_code"]) for one in results] == [
        ("0.1", 0.2, 0),
        ("0.3", 0.6, 0),
    ]
    assert (folder / "alice" / "0.3.pt").stat().st_uid == 1234
    saved = [one for one in project.receipt()["criteria"] if one["id"] == "model-saved"]
    assert saved[0]["verdict"] == "pass" and f"pvc:{name}/alice" in saved[0]["evidence"]
    fetched = tmp_path / "fetched"
    project.cli("runs", "cp", f"{results[1]['run_id']}:0.3.pt", str(fetched))
    assert (fetched / "0.3.pt").read_text() == "weights"


@pytest.mark.slow
def test_a_project_goes_through_a_registry(project: Project, registry: str, node_docker: Docker) -> None:
    project.write("seatrial.toml", f'{CONFIG}ready = "{IMAGE}"\n{CLUSTER}registry = "{registry}/me"\n')
    project.write("helper.py", "WORD = 'packed'\n")
    project.write("train.py", "import helper\nprint(helper.WORD)\n")
    ended = project.run("train.py", "--gpus", "none")
    try:
        assert project.output() == "packed\n", ended.stderr
        assert f"pushing {registry}/me/project:" in ended.stderr
        image = project.receipt()["header"]["image"]
        repository, _, tag = image["tag"].removeprefix(f"{registry}/").rpartition(":")
        wanted = "application/vnd.docker.distribution.manifest.v2+json"
        request = urllib.request.Request(
            f"http://{registry}/v2/{repository}/manifests/{tag}", method="HEAD", headers={"Accept": wanted}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert image["digest"] == answer.headers["Docker-Content-Digest"]
    finally:
        tag = project.receipt()["header"]["image"]["tag"]
        subprocess.run([*node_docker.call, "image", "rm", "--force", tag], capture_output=True)


@pytest.mark.slow
def test_a_registry_that_is_not_there(project: Project, node_docker: Docker) -> None:
    project.write("seatrial.toml", f'{CONFIG}ready = "{IMAGE}"\n{CLUSTER}registry = "127.0.0.1:1/me"\n')
    project.write("helper.py", "")
    project.write("train.py", "import helper\n")
    ended = project.run("train.py", "--gpus", "none", exit_code=None)
    assert ended.returncode == 5 and "cannot be pushed" in ended.stderr and "docker login 127.0.0.1:1" in ended.stderr
    listing = [*node_docker.call, "images", "--quiet", "--filter", "reference=127.0.0.1:1/*/*"]
    for image in subprocess.run(listing, capture_output=True, text=True).stdout.split():
        subprocess.run([*node_docker.call, "image", "rm", "--force", image], capture_output=True)


#: Counts until a file ``enough`` exists, continues from its saved count, and writes each count whole; exits with 0 on
#: SIGTERM.
COUNTS = """
import os, signal, sys, time
path = '/models/count'
done = int(open(path).read()) if os.path.exists(path) else 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open('/models/begun', 'a') as begun:
    print(done, file=begun)
while not os.path.exists('/models/enough'):
    time.sleep(0.5)
    done += 1
    with open(path + '.new', 'w') as file:
        file.write(str(done))
    os.replace(path + '.new', path)
print('finished', flush=True)
"""


@pytest.mark.timeout(600)  # the Job waits 10 s before a new pod, 20 before the next
def test_pods_that_are_deleted_gracefully_are_resumed_to_the_end(
    project: Project, claim: tuple[str, Path], cluster: Cluster
) -> None:
    """More often than real failures may be: each pod was ended from outside, so the run has not ended."""
    name, folder = claim
    project.write("seatrial.toml", f'{READY}{CLUSTER}models = "pvc:{name}"\n')
    project.write("train.py", COUNTS)
    project.run("train.py", "--gpus", "none", "--detach", "--name", "counted", "--restarts", "1")
    for pod_number in range(1, 4):
        # A SIGTERM that comes before Python has begun is lost on a container's first process: that pod would end well.
        project.wait_for(lambda number=pod_number: _counts_in(number, folder) and len(_pods(cluster)) == 1, 240)
        [pod] = _pods(cluster)
        assert json.loads(project.cli("runs", "ls", "--json").stdout)[0]["status"] in ("running", "waiting")
        if pod_number < 3:
            cluster.delete(f"{PODS}/{pod['metadata']['name']}")
    (folder / "enough").touch()
    project.wait_for(lambda: json.loads(project.cli("runs", "ls", "--json").stdout)[0]["status"] == "done", 240)
    receipt = project.receipt()
    assert (receipt["exit_cause"]["id"], receipt["exit_code"]) == ("finished", 0)


PODS = "/api/v1/namespaces/default/pods"


def _pods(cluster: Cluster) -> list[dict]:
    """Those that go on."""
    found = cluster.get(PODS, labelSelector="app.kubernetes.io/managed-by=seatrial")["items"]
    over = ("Succeeded", "Failed")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in over]


def _counts_in(pod_number: int, folder: Path) -> bool:
    """Return True once the target has started that often, each time from a higher count, and has counted further."""
    if not (folder / "count").exists():
        return False
    counts = [*map(int, (folder / "begun").read_text().split()), int((folder / "count").read_text())]
    assert len(counts) <= pod_number + 1 and counts == sorted(counts)
    return len(counts) == len(set(counts)) == pod_number + 1

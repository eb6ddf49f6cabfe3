"""Two real nodes: where pods go, how they find each other, what is lost with a node, and logs that an engine rotates.

The second node is a kubelet with an engine of its own (tests/kubernetes_node.sh), next to the cluster of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli_project import CONFIG, Project
from engines import CLUSTER, IMAGE, NODE_ENDPOINT, READY
from pace import until
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.kubernetes.client import Cluster

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

SCRIPT = Path(__file__).parents[1] / "kubernetes_node.sh"
NODES = "/api/v1/nodes"
FIRST, SECOND = "test-node", "test-node-2"
#: The third number of the second node's addresses, 172.31.x.0/24.
SUBNET = "77"


@pytest.fixture(scope="module")
def second_node(
    kubeconfig: Path, cluster: Cluster, node_docker: Docker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """``up(images)`` starts it; ``kill()`` takes its power; ``add(image)`` copies one more from the first's engine."""
    kubelet, dns = kubeconfig.parent / "bin" / "kubelet", _dns(kubeconfig.parent)
    if os.geteuid() != 0 or not kubelet.exists() or dns is None:
        pytest.skip("a second node needs root, and the kubelet and names next to the kubeconfig")
    folder = tmp_path_factory.mktemp("second") / "node"

    def script(verb: str, *words: object) -> None:
        environ = {**os.environ, "DOCKER_HOST": NODE_ENDPOINT}
        subprocess.run([SCRIPT, verb, folder, *map(str, words)], env=environ, check=True, timeout=240)

    def up() -> None:
        if not folder.exists():
            script("up", SECOND, kubeconfig, kubelet, dns, SUBNET, IMAGE, "test/pause:1")
            until(lambda: is_ready(cluster, SECOND))
        for node, pool in ((FIRST, "a"), (SECOND, "b")):
            cluster.patch(f"{NODES}/{node}", {"metadata": {"labels": {"pool": pool}}})

    def down() -> None:
        script("down")
        cluster.delete(f"{NODES}/{SECOND}")
        cluster.patch(f"{NODES}/{FIRST}", {"metadata": {"labels": {"pool": None}}})

    def add(image: str) -> None:
        engine = ["docker", "--host", f"unix://{folder}/docker.sock"]
        if subprocess.run([*engine, "image", "inspect", image], capture_output=True).returncode != 0:
            saved = subprocess.Popen([*node_docker.call, "save", image], stdout=subprocess.PIPE)
            subprocess.run([*engine, "load"], stdin=saved.stdout, check=True, capture_output=True, timeout=300)

    yield SimpleNamespace(up=up, kill=lambda: script("kill"), add=add)
    down()


def _dns(folder: Path) -> str | None:
    """Address of the cluster's names."""
    try:
        words = Path(f"/proc/{(folder / 'run' / 'dnsmasq.pid').read_text().strip()}/cmdline").read_text().split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith("--listen-address=")), None)


def is_ready(cluster: Cluster, name: str) -> bool:
    node = cluster.find(f"{NODES}/{name}")
    reported = node["status"].get("conditions") or [] if node else []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in reported)


@pytest.fixture
def project(second_node: SimpleNamespace, cluster_project: Project) -> Project:
    second_node.up()
    cluster_project.write("train.py", "print('it ran')\n")
    return cluster_project


@pytest.fixture
def torch_project(project: Project, second_node: SimpleNamespace) -> Project:
    """With torch, and models on a folder that both nodes have, since they are one machine."""
    models = project.folder.parent / "models"
    models.mkdir()
    models.chmod(0o777)
    project.write("seatrial.toml", CONFIG)
    words = ("digits", "--on", "docker", "--gpus", "none")
    project.cli("build", *words, timeout_s=600)
    image = json.loads(project.cli("plan", *words, "--json").stdout)["image"]["tag"]
    second_node.add(image)
    project.write("seatrial.toml", f'[image]\nready = "{image}"\n{CLUSTER}models = "hostpath:{models}"\n')
    return project


def pool(project: Project, name: str, *lines: str) -> None:
    """Run on this pool's node from now on."""
    selector = f'[kubernetes.node_selector]\npool = "{name}"\n'
    project.write("seatrial.toml", READY + CLUSTER + "".join(lines) + selector)


def machines(project: Project) -> dict[int, set[str]]:
    """Node of the last run → the machines that its pods ran on."""
    found: dict[int, set[str]] = {}
    for event in project.events("host.pod"):
        found.setdefault(event["node"], set()).add(event["host"])
    return found


def status(project: Project) -> str:
    [line, *_] = json.loads(project.cli("runs", "ls", "--json").stdout)
    return f"{line['status']}: {line['outcome']}" if line["status"] == "waiting" else line["status"]


def test_a_selector_and_a_taint_decide_where_a_run_goes(project: Project, cluster: Cluster) -> None:
    pool(project, "b")
    project.run("train.py", "--gpus", "none", "--with-names")
    assert machines(project) == {0: {SECOND}} and SECOND in json.dumps(project.receipt())
    project.run("train.py", "--gpus", "none")
    assert SECOND not in json.dumps(project.receipt())
    pool(project, "c")
    project.run("train.py", "--gpus", "none", "--detach", "--name", "nowhere")
    project.wait_for(lambda: status(project) == "waiting: node selector")
    assert "pool=c; pool is a, b" in project.cli("runs", "logs", "nowhere").stderr
    project.cli("runs", "stop", "nowhere")
    cluster.patch(f"{NODES}/{SECOND}", {"spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}})
    try:
        pool(project, "b")
        project.run("train.py", "--gpus", "none", "--detach", "--name", "tainted")
        project.wait_for(lambda: status(project) == "waiting: untainted node")
        assert 'tolerations = ["team"]' in project.cli("runs", "logs", "tainted").stderr
        project.cli("runs", "stop", "tainted")
        pool(project, "b", 'tolerations = ["team=x:NoSchedule"]\n')
        project.run("train.py", "--gpus", "none")
    finally:
        cluster.patch(f"{NODES}/{SECOND}", {"spec": {"taints": None}})


def test_a_log_that_the_engine_rotates_is_no_silent_loss(project: Project) -> None:
    """30 MB in files of 10 MB, read when all is over: the log API gives out the last file."""
    pool(project, "b")
    project.write("train.py", "for i in range(300_000):\n    print('line %d ' % i + 'x' * 90)\n")
    run_id = project.run("train.py", "--gpus", "none", "--detach").stdout.strip()
    time.sleep(20)  # nobody looks: a look would read what is there
    project.wait_for(lambda: status(project) == "done")
    receipt, left = project.receipt(), project.output().count("\n")
    assert left < 150_000 and project.output().endswith(f"line 299999 {'x' * 90}\n")
    assert any(f"{300_000 - left} lines of output are in no log" in reported for reported in receipt["warnings"])
    assert receipt["seal"]["missing"] > 0 and any("never arrived" in reported for reported in receipt["warnings"])
    assert receipt["exit_cause"]["id"] == "finished", run_id  # by the summary at the end of the log


MEET = """
import datetime, os, socket, time
import torch, torch.distributed as dist
dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=30))
path = '/models/count'
done = int(open(path).read()) if os.path.exists(path) else 0
print('begins at', done, 'of', dist.get_world_size(), flush=True)
total = torch.ones(1)
while done < 20:
    time.sleep(1)
    dist.all_reduce(total)
    done += 1
    if dist.get_rank() == 0:
        open(path + '.new', 'w').write(str(done))
        os.replace(path + '.new', path)
print('finished', flush=True)
"""


def test_a_node_that_is_lost_for_good(
    torch_project: Project, second_node: SimpleNamespace, cluster: Cluster, tmp_path: Path, indexed_jobs: None
) -> None:
    """Two pods meet by name across two machines; one loses its power; the run goes on where there is still one."""
    project = torch_project
    project.write("train.py", MEET)
    count = tmp_path / "models" / "count"
    for _ in range(6):  # until the machine that will be lost has the second pod: the first has the meeting's store
        started = project.run("train.py", "--gpus", "none", "--nodes", "2", "--detach")
        run_id = started.stdout.strip()
        project.wait_for(lambda run_id=run_id: project.cli("runs", "logs", run_id) and len(machines(project)) == 2)
        assert sorted(machines(project).values(), key=str) == [{FIRST}, {SECOND}], "the scheduler spreads a run's pods"
        if machines(project)[1] == {SECOND}:
            break
        project.cli("runs", "stop", "--kill", run_id)
        count.unlink(missing_ok=True)
    else:
        pytest.skip("the second pod never came to the second machine")
    assert "each of the cluster's 2 nodes has a folder of its own" in started.stderr
    project.wait_for(lambda: count.exists() and int(count.read_text()) >= 3)
    second_node.kill()
    project.wait_for(lambda: status(project) == "waiting: a lost node")
    reported = project.cli("runs", "logs", run_id).stderr
    assert f"the machine {SECOND} does not answer" in reported and f"kubectl delete node {SECOND}" in reported
    cluster.delete(f"{NODES}/{SECOND}")  # by hand, or as a cloud does for a machine that is gone
    project.wait_for(lambda: project.cli("runs", "logs", run_id) and status(project) == "done", 240)
    assert project.receipt()["exit_cause"]["id"] == "finished"
    assert set().union(*machines(project).values()) == {FIRST, SECOND}
    output = project.output()
    assert "begins at 0 of 2" in output and output.count("finished") == 2

"""Images for nodes that cannot mount the project, built by Docker and pushed to a registry of the test's own."""

from __future__ import annotations

import json
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_plans import rendered
from planning_sites import a_site
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.job.cluster import ClusterOptions
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.planning.plan import make_plan
from seatrial.runs.build import make_image_ready
from seatrial.system.host import Host

pytestmark = pytest.mark.docker

READY = "python:3.11-slim-bookworm"
#: Writes next to the code, as a pod's user does, whose ID no image knows.
WRITES = "import helper, pathlib; pathlib.Path('sub/new').write_text(helper.WORD); pathlib.Path('new').touch()"


@pytest.fixture
def project(tmp_path: Path, docker_backend: Docker) -> Iterator[Path]:
    folder = tmp_path / f"code-layer-{secrets.token_hex(3)}"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "data.txt").write_text("kept\n")
    (folder / "helper.py").write_text("WORD = 'packed'\n")
    (folder / "train.py").write_text("print('trained')\n")
    yield folder
    listing = [*docker_backend.call, "images", "--format", "{{.Repository}}:{{.Tag}}"]
    tags = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    for tag in (tag for tag in tags if folder.name in tag):
        subprocess.run([*docker_backend.call, "image", "rm", "--force", tag], capture_output=True, check=True)


def made(project: Path, tmp_path: Path, code: str, registry: str | None, ready: str | None = None) -> tuple[Plan, str]:
    """The plan, its image built and pushed, and what was shown meanwhile."""
    job = Job(
        project=project,
        target=Target(kind="script", value="train.py"),
        image=ImageOptions(ready=ready, build_network="host"),
        kubernetes=ClusterOptions(code=code, registry=registry),  # type: ignore[arg-type]
    )
    plan = make_plan(job, a_site("k8s", tmp_path, project), script_facts(job.target, project))
    shown: list[str] = []
    plan = make_image_ready(plan, tmp_path, Host({}), shown.append)
    return plan, "\n".join(shown)


def pushed_digest(registry: str, tag: str) -> str:
    """The digest that the registry itself gives for a tag."""
    name, _, version = tag.removeprefix(f"{registry}/").rpartition(":")
    kinds = ("docker.distribution.manifest.v2", "oci.image.manifest.v1", "oci.image.index.v1")
    accepted = ", ".join(f"application/vnd.{kind}+json" for kind in kinds)
    request = urllib.request.Request(f"http://{registry}/v2/{name}/manifests/{version}", headers={"Accept": accepted})
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers["Docker-Content-Digest"])


@pytest.mark.parametrize("ready", [None, READY])
def test_any_user_can_write_next_to_the_code(
    project: Path, tmp_path: Path, docker_backend: Docker, ready: str | None
) -> None:
    plan, shown = made(project, tmp_path, "image", None, ready)
    assert plan.image is not None and "pushing" not in shown
    run = [*docker_backend.call, "run", "--rm", "--network", "none", "--user", "4321:4321"]
    argv = [*run, "--workdir", "/workspace", plan.image.tag, "python3", "-c", WRITES]
    ended = subprocess.run(argv, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    inspected = subprocess.run([*docker_backend.call, "inspect", plan.image.tag], capture_output=True, check=True)
    assert json.loads(inspected.stdout)[0]["Config"]["User"] == "1000:1000"


def test_configmap_pushes_the_image_without_the_code(
    project: Path, tmp_path: Path, docker_backend: Docker, registry: str
) -> None:
    plan, shown = made(project, tmp_path, "configmap", f"{registry}/me")
    assert plan.image is not None and f"pushing {registry}/me/" in shown
    subprocess.run([*docker_backend.call, "image", "rm", "--force", plan.image.tag], capture_output=True, check=True)
    run = [*docker_backend.call, "run", "--rm", "--network", "none", plan.image.tag, "ls", "-A", "/workspace"]
    ended = subprocess.run(run, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_image_with_the_code_comes_back_from_the_registry(
    project: Path, tmp_path: Path, docker_backend: Docker, registry: str
) -> None:
    plan, _ = made(project, tmp_path, "image", f"{registry}/me")
    assert plan.image is not None and plan.cluster is not None
    name, _, digest = plan.cluster.image.partition("@")
    assert name == plan.image.tag.rpartition(":")[0] and name.startswith(f"{registry}/me/")
    assert digest == pushed_digest(registry, plan.image.tag)
    [*_, workload] = rendered(plan)
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert container["image"] == plan.cluster.image
    remove = [*docker_backend.call, "image", "rm", "--force", plan.image.tag, plan.cluster.image]
    subprocess.run(remove, capture_output=True, check=True)
    subprocess.run([*docker_backend.call, "pull", "--quiet", plan.cluster.image], capture_output=True, check=True)
    run = [*docker_backend.call, "run", "--rm", "--network", "none", plan.cluster.image, "python3", "-c", WRITES]
    ended = subprocess.run(run, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    subprocess.run(
        [*docker_backend.call, "image", "rm", "--force", plan.cluster.image], capture_output=True, check=True
    )


def test_nothing_is_pushed_where_no_registry_is_named(
    project: Path, tmp_path: Path, docker_backend: Docker, registry: str
) -> None:
    plan, shown = made(project, tmp_path, "image", None)
    assert plan.cluster is not None and plan.image is not None and "pushing" not in shown
    assert plan.cluster.image == plan.image.tag
    with urllib.request.urlopen(f"http://{registry}/v2/_catalog") as answer:
        assert json.load(answer) == {"repositories": []}

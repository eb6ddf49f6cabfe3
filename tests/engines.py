"""The real engines, each skipped with the reason when it cannot run a container here."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project, environment
from here import free_ports
from pace import until
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.survey import INDEXED_SINCE, read_version
from seatrial.system.host import Host

IMAGE = "python:3.11-slim-bookworm"

#: Lines of a seatrial.toml: pods of the base image, and how they run.
READY = f'[image]\nready = "{IMAGE}"\n'
CLUSTER = '[kubernetes]\nkind = "job"\nuid = 1234\n'

#: For virtual machines whose own limits are below Podman's defaults and that cannot make network namespaces.
LOW_LIMITS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
"""

#: Where the test cluster's kubelet looks for Docker, for any DOCKER_HOST.
NODE_ENDPOINT = "unix:///var/run/docker.sock"

SHARED = Path(__file__).parents[2] / "shared" / "k8s"


def _why_not(backend: Docker | Podman) -> str | None:
    """Return the reason why this engine cannot run a container of the base image, or None."""
    facts = backend.facts()
    if not facts.available:
        return facts.reason
    if backend.images.image(IMAGE) is None:
        return f"{backend.name} has no image {IMAGE}"
    argv = [*backend.call, "run", "--rm", "--pull", "never", IMAGE, "true"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    return None if ended.returncode == 0 else f"{backend.name} runs no container: {ended.stderr.strip()[-300:]}"


@pytest.fixture(scope="session")
def docker_backend() -> Docker:
    if reason := _why_not(Docker()):
        pytest.skip(reason)
    return Docker()


@pytest.fixture(scope="session")
def second_docker(docker_backend: Docker) -> str:
    """Endpoint of another Docker engine on this machine, which SEATRIAL_TEST_DOCKER names."""
    endpoint = os.environ.get("SEATRIAL_TEST_DOCKER")
    if endpoint is None:
        pytest.skip("SEATRIAL_TEST_DOCKER names no second Docker engine")
    second = Docker(["docker", "--host", endpoint])
    if reason := _why_not(second):
        pytest.skip(reason)
    if second.client.address().id == docker_backend.client.address().id:
        pytest.skip(f"{endpoint} is the engine that the environment leads to")
    return endpoint


@pytest.fixture(scope="session")
def podman_backend(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    if _why_not(Podman()) is None:
        return Podman()
    settings = Path(tmp_path_factory.mktemp("podman")) / "containers.conf"
    settings.write_text(LOW_LIMITS)
    call = ["env", f"CONTAINERS_CONF={settings}", "podman"]
    if reason := _why_not(Podman(call)):
        pytest.skip(reason)
    return Podman(call)


@pytest.fixture(
    params=[
        pytest.param("docker_backend", marks=pytest.mark.docker),
        pytest.param("podman_backend", marks=pytest.mark.podman),
    ]
)
def engine(request: pytest.FixtureRequest) -> Docker | Podman:
    """Docker, then Podman."""
    backend: Docker | Podman = request.getfixturevalue(request.param)
    return backend


#: Builds an image of a Dockerfile's text with an engine's program, and returns its tag.
BuildImage = Callable[[Sequence[str], str], str]


@pytest.fixture
def build_image(tmp_path: Path) -> Iterator[BuildImage]:
    """Yield a function that builds images whose context is ``tmp_path / "image"``; they are removed at the end."""
    context, built = tmp_path / "image", []
    context.mkdir()

    def build(engine: Sequence[str], dockerfile: str) -> str:
        (context / "Dockerfile").write_text(dockerfile)
        built.append([*engine, "image", "rm", "--force", tag := f"localhost/seatrial-test:{uuid.uuid4().hex[:10]}"])
        argv = [*engine, "build", "--network", "host", "--tag", tag, str(context)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return tag

    yield build
    for removal in built:
        subprocess.run(removal, capture_output=True, timeout=300)


@pytest.fixture(scope="session")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For the command line: caches and leases of this test session alone."""
    return environment(tmp_path_factory.mktemp("environ"))


@pytest.fixture(scope="session")
def project_name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One a worker, so that all its projects share an image, which nobody else removes."""
    name = f"test-project-{os.getpid()}"
    yield name
    for engine in ("docker", "podman"):
        try:
            listing = [engine, "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference=*/{name}:*"]
            for tag in subprocess.run(listing, capture_output=True, text=True, timeout=300).stdout.split():
                subprocess.run([engine, "image", "rm", tag], capture_output=True, timeout=300)
        except FileNotFoundError:
            pass


def _project(request: pytest.FixtureRequest, backend: str) -> Project:
    environ = dict(request.getfixturevalue("environ"))
    folder = request.getfixturevalue("tmp_path") / request.getfixturevalue("project_name")
    if backend == "local":
        return Project(folder, backend, environ)
    if backend == "second-docker":
        engine = ["docker", "--host", request.getfixturevalue("second_docker")]
        environ["SEATRIAL_DOCKER"] = shlex.join(engine)
        return Project(folder, "docker", environ, engine)
    engine = request.getfixturevalue(f"{backend}_backend").call
    environ[f"SEATRIAL_{backend.upper()}"] = shlex.join(engine)
    return Project(folder, backend, environ, engine)


_CONTAINERS = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.podman),
    pytest.param("second-docker", marks=[pytest.mark.docker, pytest.mark.slow]),
]


@pytest.fixture(params=[*_CONTAINERS, "local"])
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    """A project for each backend in turn; for a second Docker, of another version, in the full tier."""
    made = _project(request, request.param)
    yield made
    made.clean()


@pytest.fixture(params=_CONTAINERS)
def container_project(request: pytest.FixtureRequest) -> Iterator[Project]:
    """A project for Docker, then for Podman."""
    made = _project(request, request.param)
    yield made
    made.clean()


def _project_of(backend: str) -> Any:
    """Make a project's fixture for this backend only."""

    @pytest.fixture(name=f"{backend}_project")
    def fixture(request: pytest.FixtureRequest) -> Iterator[Project]:
        made = _project(request, backend)
        yield made
        made.clean()

    return fixture


docker_project, podman_project, local_project = map(_project_of, ("docker", "podman", "local"))


@pytest.fixture(scope="session")
def node_docker() -> Docker:
    """Return the Docker engine that runs the test cluster's pods; the terminal may be set to another one."""
    node = Docker(["docker", "--host", NODE_ENDPOINT])
    if reason := _why_not(node):
        pytest.skip(reason)
    return node


@pytest.fixture(scope="session")
def cluster_environ(environ: dict[str, str], kubeconfig: Path) -> dict[str, str]:
    """Return the environment of a command line that is set to the test cluster and its node's engine."""
    return {**environ, "KUBECONFIG": str(kubeconfig), "DOCKER_HOST": NODE_ENDPOINT}


@pytest.fixture
def cluster_project(tmp_path: Path, cluster_environ: dict[str, str]) -> Iterator[Project]:
    """A project for the test cluster, whose pods are of the base image and of user 1234."""
    made = Project(tmp_path / "project", "k8s", cluster_environ)
    made.write("seatrial.toml", READY + CLUSTER)
    yield made
    made.clean()


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory, node_docker: Docker) -> Iterator[Path]:
    """Yield the kubeconfig of a cluster started for this session, or the file that SEATRIAL_TEST_KUBECONFIG names."""
    if given := os.environ.get("SEATRIAL_TEST_KUBECONFIG"):
        yield Path(given)
        return
    script = SHARED / "cluster.sh"
    if not script.exists():
        pytest.skip("no script next to the repository starts a cluster")
    folder = tmp_path_factory.mktemp("cluster") / "k8s"
    environ = {**os.environ, "DOCKER_HOST": NODE_ENDPOINT}
    try:
        started = subprocess.run([script, "up", folder], env=environ, capture_output=True, text=True, timeout=240)
        why_not = started.stderr.strip()[-300:] if started.returncode else None
    except subprocess.TimeoutExpired:
        why_not = "it did not start within 240 s"
    if why_not is not None:
        subprocess.run([script, "down", folder], env=environ, capture_output=True, timeout=300)
        pytest.skip(f"no cluster: {why_not}")
    yield folder / "kubeconfig"
    subprocess.run([script, "down", folder], env=environ, capture_output=True, timeout=300)


@pytest.fixture(scope="session")
def cluster(kubeconfig: Path) -> Cluster:
    return Cluster(Host({"KUBECONFIG": str(kubeconfig)}))


def report_gpus(cluster: Cluster, count: str | None) -> None:
    """Give the node this capacity, as a device plugin would report it."""
    node = "/api/v1/nodes/test-node"
    cluster.patch(f"{node}/status", {"status": {"capacity": {"nvidia.com/gpu": count}}})
    wanted = (None, "0") if count is None else (count,)
    until(lambda: cluster.get(node)["status"]["allocatable"].get("nvidia.com/gpu") in wanted)


@pytest.fixture
def indexed_jobs(cluster: Cluster) -> None:
    """Skip on a cluster whose Jobs do not number their pods: several nodes need that."""
    if read_version(cluster.get("/version")) < INDEXED_SINCE:
        pytest.skip("Jobs of this cluster are not indexed: several nodes need Kubernetes 1.24")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Debian's docker-registry on a free port: ``127.0.0.1:PORT``."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (Debian: apt-get install docker-registry)")
    address = f"127.0.0.1:{free_ports()[0]}"
    config = tmp_path / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: {address}}}\n")
    with (tmp_path / "registry.log").open("wb") as log:
        server = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 120
        while not _answers(address):
            assert time.monotonic() < deadline_s and server.poll() is None, (tmp_path / "registry.log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def _answers(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://{address}/v2/", timeout=2).status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def faults() -> Callable[[Any], list[str]]:
    """Return a function that lists faults of an opened page: serious ones by axe, and a page wider than its window."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe_playwright_python, which carries axe-core's script, is not installed")
    axe = (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")

    def found(page: Any) -> list[str]:
        page.evaluate(axe)
        violations = page.evaluate("axe.run().then((found) => found.violations)")
        serious = [each for each in violations if each["impact"] in ("serious", "critical")]
        shown = page.evaluate("document.documentElement.scrollWidth")
        wide = [f"{shown} wide"] if shown > page.viewport_size["width"] else []
        return [f"{each['id']} {each['nodes'][0]['target']}" for each in serious] + wide

    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, which playwright drives."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()

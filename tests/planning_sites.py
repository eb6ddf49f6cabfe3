"""Places to plan for, none of which has to be there: an engine, this machine's processes, a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes import FakeBackend
from seatrial.backends.base import OF_CONTAINERS, OF_PROCESSES, EngineFacts, ImageFacts, Traits
from seatrial.backends.containers.docker_and_podman import PODMAN
from seatrial.backends.kubernetes.backend import Kubernetes
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.gpus import Selection
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice, Gpu, Plan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning.host import HostFacts
from seatrial.planning.plan import make_plan, with_defaults
from seatrial.planning.site import ClusterSite, Site
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.nvml import Inventory

RUN_ID = "20261121-000000-test"
READY = "registry.test/train:1"
SCRIPT = Target(kind="script", value="train.py")
TRAITS: dict[str, Traits] = {
    "docker": OF_CONTAINERS,
    "podman": OF_CONTAINERS,
    "local": OF_PROCESSES,
    "k8s": Kubernetes.traits,
}

MODERN = ClusterFacts(version=(1, 31), git_version="v1.31.0", nodes=(Node("gpu-1", 8, 8, ready=True),))
GPUS = tuple(
    Gpu(
        index=n, minor=n, uuid=f"GPU-0000000{n}", name="NVIDIA H200", memory_bytes=150 * 10**9, compute_capability="9.0"
    )
    for n in (0, 1)
)
CDI = ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all")


def a_host(folder: Path, gpus: tuple[Gpu, ...] = (), **facts: Any) -> HostFacts:
    """A machine of 64 GB, of a user whose folders are in ``folder``. No engine answers there."""
    host = HostFacts(facts.pop("environ", {"SEATRIAL_DOCKER": "/nowhere/docker", "SEATRIAL_PODMAN": "/nowhere/podman"}))
    known = {
        "inventory": Inventory("580.159.04" if gpus else None, "13.0" if gpus else None, []),
        "gpus": gpus,
        "find_driver": lambda: DriverFiles(version=None),
        "uid": 1000,
        "gid": 1000,
        "user_name": "ada",
        "cache_folder": folder / "cache",
        "state_folder": folder / "state",
        "memory_bytes": 64 * 10**9,
        "most_pids": 32768,
    }
    for name, value in {**known, **facts}.items():
        setattr(host, name, value)
    return host


def a_site(
    backend: str,
    folder: Path,
    project: Path,
    *,
    gpus: int = 0,
    cluster: ClusterFacts = MODERN,
) -> Site:
    """A place of this backend's kind, with so many of its GPUs given to the run."""
    place = project / ".seatrial" / "runs" / RUN_ID
    chosen = GPUS[:gpus]
    fake = FakeBackend()
    fake.name, fake.traits = backend, TRAITS[backend]
    fake.images.held[READY] = ImageFacts("sha256:1", None, cmd=("serve",), python="/usr/bin/python3")
    inside = {"runtimes": ("runc", "nvidia"), "cdi_spec_dirs": ("/etc/cdi",), "cdi_devices": CDI} if gpus else {}
    return Site(
        run_id=RUN_ID,
        record=folder / "state" / "runs" / RUN_ID,
        outputs=place / "outputs",
        project_cache=folder / "cache" / "project",
        backend=fake,
        engine=EngineFacts(
            backend, available=True, reason="a fake", **inside, **(PODMAN if backend == "podman" else {})
        ),  # type: ignore[arg-type]
        host=a_host(folder, chosen),
        agent_archive=folder / "state" / "agent.pyz",
        secrets_folder=folder / "secrets",
        selection=None if backend == "k8s" else Selection(chosen, ()),
        cluster=ClusterSite(cluster, Choice(what="cluster", value="a fake", reason="")) if backend == "k8s" else None,
    )


def facts_of(project: Path, source: str, **modules: str) -> ScriptFacts:
    """Write ``train.py`` and modules, and return what is read from it; ``__`` in a module's name is a slash."""
    for name, text in {"train": source, **modules}.items():
        path = project / f"{name.replace('__init__', '*').replace('__', '/').replace('*', '__init__')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return script_facts(SCRIPT, project)


def plan_of(
    folder: Path, source: str = "", backend: str = "docker", *, gpus: int = 0, ready: bool = False, **job: Any
) -> Plan:
    """The plan of a script with this source in ``folder/project``; ``job`` replaces the job's fields."""
    project = folder / "project"
    script = facts_of(project, source)
    image = ImageOptions(ready=READY if ready else None)
    fields = {"target": SCRIPT, "gpus": str(gpus) if gpus else "none", "image": image, **job}
    made = Job(project=project, backend=backend, **fields)
    site = a_site(backend, folder, project, gpus=gpus)
    if made.target != SCRIPT:
        script = script_facts(made.target, project)
    return make_plan(with_defaults(made, site.backend.traits), site, script)


def chosen(plan: Plan, what: str) -> Choice:
    """The plan's one choice of this."""
    [choice] = [each for each in plan.choices if each.what == what]
    return choice

"""Engines, GPUs and jobs to plan for."""

from pathlib import Path
from typing import Any

from fakes import FakeBackend
from planning_sites import a_host
from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.docker_and_podman import PODMAN
from seatrial.backends.containers.injection import choose
from seatrial.job.gpus import Selection
from seatrial.job.model import Job, Target
from seatrial.job.plan import Gpu, ImagePlan, Mount
from seatrial.planning.container.plan import ContainerParts, plan_container
from seatrial.planning.site import Site
from seatrial.probe.driver_files import DriverFiles

UUIDS = ("GPU-de421f49-0f0c-4a5b-8c6d-112233445566", "GPU-7a9c0e1d-2b3c-4d5e-8f60-a1b2c3d4e5f6")
H200S = tuple(
    Gpu(index=index, minor=index, uuid=uuid, name="NVIDIA H200", memory_bytes=150_754_820_096)
    for index, uuid in enumerate(UUIDS)
)
SLICE = Gpu(index=0, uuid="MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", name="1g.18gb", memory_bytes=2**34, mig="0:1")
CDI_BY_INDEX = ("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all")
CDI_BY_UUID = (*CDI_BY_INDEX, *(f"nvidia.com/gpu={uuid}" for uuid in UUIDS))
STATE = Path("/home/ada/.local/state/seatrial")
RECORD = STATE / "projects" / "mnist-0123456789abcdef" / "runs" / "20261120-231501-k3f9"
PLACE = Path("/home/ada/mnist/.seatrial/runs/20261120-231501-k3f9")
CACHE = Path("/home/ada/.cache/seatrial/projects/mnist-0123456789abcdef")
NO_DRIVER = DriverFiles(version=None, missing=("/proc/driver/nvidia/version: the NVIDIA kernel module is not loaded",))


def docker(**facts: Any) -> EngineFacts:
    return EngineFacts(
        **{"name": "docker", "available": True, "reason": "Docker 28.2.2", "runtimes": ("runc",), **facts}
    )


def podman(**facts: Any) -> EngineFacts:
    return EngineFacts(
        **{
            "name": "podman",
            "available": True,
            "reason": "Podman 5.4.0",
            "rootless": True,
            "runtimes": ("crun",),
            **PODMAN,
            **facts,
        }
    )


def job(**keys: Any) -> Job:
    return Job(**{"project": Path("/home/ada/mnist"), "target": Target(kind="script", value="train.py"), **keys})


def container(
    engine: EngineFacts,
    gpus: tuple[Gpu, ...] = (),
    driver: DriverFiles = NO_DRIVER,
    *,
    image: ImagePlan | None = None,
    environ: dict[str, str] | None = None,
    uid: int = 1000,
    secrets_folder: Path | None = None,
    resumed: Mount | None = None,
    host_memory_bytes: int | None = None,
    **keys: Any,
) -> ContainerParts:
    """The container of a job with these keys, for user ada."""
    host = a_host(
        STATE.parent,
        gpus,
        uid=uid,
        gid=uid,
        state_folder=STATE,
        environ=environ or {},
        memory_bytes=host_memory_bytes,
        most_pids=None,
    )
    site = Site(
        run_id="20261120-231501-k3f9",
        record=RECORD,
        outputs=PLACE / "outputs",
        project_cache=CACHE,
        backend=FakeBackend(engine.name),
        engine=engine,
        host=host,
        agent_archive=STATE / "agent" / "agent.pyz",
        secrets_folder=secrets_folder,
        resumed=resumed,
        selection=Selection(gpus, ()),
    )
    built = ImagePlan(tag="seatrial/mnist:0123456789ab", build=True)
    return plan_container(job(**keys), site, image or built, choose(engine, gpus, driver))

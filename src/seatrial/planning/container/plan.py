"""Job + facts → ContainerPlan: a container that typical scripts survive. Changes nothing; reads env files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.client import ADDRESS_VARIABLES
from seatrial.backends.containers.injection import InjectionPlan
from seatrial.backends.containers.mounts import checked_mount, home_mounts, place_mounts, real_source, shielded
from seatrial.backends.containers.run_options import proxy_env
from seatrial.errors import UsageError
from seatrial.job import in_container
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ContainerPlan, ImagePlan, Mount, Tmpfs
from seatrial.planning.container.env import plan_env
from seatrial.planning.container.limits import PIDS, memory_limit, memory_warnings, refuse_unenforceable, shm_limit
from seatrial.planning.process import gpu_count
from seatrial.planning.site import Site
from seatrial.system.text import as_typed

#: Programs and libraries are run from /tmp: torch's and Triton's compilers, pip's builds. Docker's default is noexec.
TMP = Tmpfs(target="/tmp", options="exec,mode=1777")

#: Capabilities that root keeps inside a container: it may write where the caller may, and unpack archives, which root
#: does with their owners. An ordinary user needs none.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")

#: Of a built image: its packages and the system's Python, without which the target does not start.
_NEEDED = ("/opt/venv/bin", "/usr/bin/env", "/usr/lib/os-release")

#: Devices that only --gpus may request, or the contract would compare with the wrong list.
GPU_DEVICE = re.compile(r"^/dev/(nvidia|dxg)|^[a-z.]*nvidia\.com/")


class ContainerParts(NamedTuple):
    """Holds a planned container. ``target_env``: variables of the user's that the target gets, and PID 1 does not."""

    container: ContainerPlan
    target_env: dict[str, str]
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]


def plan_container(
    job: Job,
    site: Site,
    image: ImagePlan,
    injection: InjectionPlan,
    *,
    made_if_missing: Collection[str] = (),
    more_mounts: Sequence[Mount] = (),
) -> ContainerParts:
    """Plan everything about the container but the image.

    ``made_if_missing``: targets of the user's mounts whose folders in the project need not be there.
    Raises UsageError: an invalid mount, env file, device or workdir. EngineError: a limit that it cannot enforce.
    """
    engine, host = site.engine, site.host
    # Another machine's memory and processes are not known here.
    far = (re.match("tcp:|ssh:|https?:", host.env.get(each, "")) for each in ADDRESS_VARIABLES.values())
    here = site.another is None and not any(far)
    host_memory, most_pids = (host.memory_bytes, host.most_pids) if here else (None, None)
    refuse_unenforceable(job, engine)
    _refuse_devices(job, here=here and not engine.desktop)
    user, userns, user_choice = caller_in(engine, host.uid, host.gid)
    named_user = not engine.names_every_user and user != "0:0"
    placed = _mounts(job, site, injection, named_user=named_user, made_if_missing=made_if_missing)
    mounts, masks = shielded(placed, hidden_folders(job, site))
    filled = [mount for mount in mounts if mount not in injection.mounts]
    env, target_env, env_warnings = plan_env(job, image, injection, host, filled)
    memory_bytes, memory_choice = memory_limit(job, engine, host_memory)
    shm_bytes, shm_choice = shm_limit(job, gpu_count(site), memory_bytes=memory_bytes or host_memory)
    has_names = job.network not in (None, "host", "none", "bridge")
    plan = ContainerPlan(
        name=f"seatrial-{site.run_id}",
        hostname=_hostname(job, engine, site.run_id),
        command=agent_command(site, image),
        user=user,
        userns=userns,
        capabilities=ROOT_CAPABILITIES if user == "0:0" else (),
        security_opts=("label=disable",) if engine.selinux else (),
        groups=injection.groups,
        workdir=job.folder_inside,
        env=env,
        mounts=(*mounts, *more_mounts),
        tmpfs=(*(() if any(mount.target == TMP.target for mount in mounts) else (TMP,)), *masks),
        devices=(*injection.devices, *job.devices),
        gpus_flag=injection.gpus_flag,
        runtime=injection.runtime,
        network=job.network,
        # Among several nodes, on a network that has names: not the host's, nor the engine's default.
        network_alias=job.hosts[job.node_rank] if job.node_rank is not None and has_names else None,
        publish=job.publish,
        ulimits=job.ulimits,
        cpus=job.cpus,
        memory_bytes=memory_bytes,
        pids=min(PIDS, most_pids // 2) if most_pids else PIDS,
        shm_bytes=shm_bytes,
        read_only_root=not job.writable,
        labels=container_labels(job, site),
        stop_timeout_s=math.ceil(job.grace_s) + in_container.AGENT_GRACE_S,
    )
    reason = "SELinux is on, and relabelling the mounts would permanently change the user's own folders"
    label = [Choice(what="SELinux label", value="disabled for this container", reason=reason)] if engine.selinux else []
    choices = (user_choice, shm_choice, *memory_choice, _root_choice(job), *label)
    own_memory = None if engine.desktop else host_memory  # containers of Docker Desktop have a virtual machine's
    return ContainerParts(plan, target_env, choices, (*env_warnings, *_warnings(job, site, own_memory)))


def _refuse_devices(job: Job, *, here: bool) -> None:
    """Refuse a GPU and, for a container of this machine, a path that is not ``here``. Raises UsageError."""
    for device in job.devices:
        if GPU_DEVICE.match(device):
            message = f"--device {device} is a GPU: it would bypass the --gpus check"
            raise UsageError(message, run="seatrial run … --gpus device=0")
        path = Path(device.partition(":")[0])
        if here and path.is_absolute() and os.access(path.parent, os.X_OK) and not os.path.lexists(path):
            raise UsageError(f"--device {path}: this machine has no such device", run=f"ls {as_typed(path.parent)}")


def agent_command(site: Site, image: ImagePlan) -> tuple[str, ...]:
    """Return what PID 1 runs: the agent, on its own or the image's Python. Raises UsageError: there is neither."""
    if site.interpreter is None and image.python is None:
        cause = "seatrial can bring no Python along from this system; [image] python names another"
        run = "seatrial run --image ANOTHER -- PROGRAM"
        raise UsageError(f"{image.tag} has no Python >= 3.8 to run the agent", cause=cause, run=run)
    python = in_container.PYTHON_COMMAND if site.interpreter is not None else (str(image.python),)
    return (*python, *in_container.AGENT_ARGV)


def agent_mounts(site: Site) -> list[Mount]:
    """Return the mounts of the agent: what it is made of, its orders, and where the target's own files go."""
    own = site.interpreter
    return [
        Mount(source=site.outputs, target=in_container.CONTAINER_RUN),
        *([Mount(source=own.folder, target=in_container.CONTAINER_PYTHON, read_only=True)] if own else []),
        Mount(source=site.agent_archive, target=in_container.CONTAINER_AGENT, read_only=True),
        Mount(source=site.record / "agent.json", target=in_container.CONTAINER_PLAN, read_only=True),
    ]


def caller_in(engine: EngineFacts, uid: int, gid: int) -> tuple[str, str | None, Choice]:
    """Choose the user that the container runs as, so that its files belong to the caller."""
    user, userns, reason = f"{uid}:{gid}", None, "the caller's own uid and gid: the caller owns the outputs"
    if engine.rootless and engine.maps_the_caller:
        userns, reason = "keep-id", "rootless Podman maps the caller to itself (keep-id)"
    elif engine.rootless:
        user, reason = "0:0", "rootless Docker maps the caller to root inside: the caller owns the outputs"
    return user, userns, Choice(what="user", value=f"{user} {userns or ''}".rstrip(), reason=reason)


def unkept_folders(container: ContainerPlan) -> tuple[str, ...]:
    """Return the folders that end with the container: in memory, and what is writable of the image."""
    kept = {mount.target for mount in container.mounts}
    memory = [folder for folder in (TMP.target, "/dev/shm") if folder not in kept]
    return tuple(memory if container.read_only_root else ["/", *memory])


def _mounts(
    job: Job, site: Site, injection: InjectionPlan, *, named_user: bool, made_if_missing: Collection[str]
) -> tuple[Mount, ...]:
    """Return our mounts, the driver's and the user's, parents first."""
    ours = [
        *_job_mounts(job, site.host.state_folder),
        *home_mounts(site.record, site.project_cache, named_user=named_user),
        *agent_mounts(site),
        # Writable: the agent deletes each secret once it has read it.
        *([Mount(source=site.secrets_folder, target=in_container.CONTAINER_SECRETS)] if site.secrets_folder else []),
        *([site.resumed] if site.resumed else []),
        *injection.mounts,
    ]
    state = site.host.state_folder
    users = [checked_mount(each, job.project, state, made=each.target in made_if_missing) for each in job.mounts]
    return place_mounts(users, ours, _NEEDED if job.image.ready is None else ())


def hidden_folders(job: Job, site: Site) -> tuple[Path, ...]:
    """Return the host folders that no container may see."""
    return (site.host.state_folder, job.project / ".seatrial", *site.hidden)


def container_labels(job: Job, site: Site) -> dict[str, str]:
    return {
        in_container.RUN_LABEL: site.run_id,
        in_container.NAME_LABEL: job.name or "",
        in_container.ROLE_LABEL: in_container.TARGET_ROLE,
        in_container.LOG_LABEL: in_container.FRAMED_LOG,
    }


def _job_mounts(job: Job, state: Path) -> list[Mount]:
    real_source(job.project, job.project, "--project", state=state)
    mounts = [Mount(source=job.project, target=in_container.CONTAINER_PROJECT)]
    targets = in_container.CONTAINER_DATA, in_container.CONTAINER_MODELS
    for flag, folder, target in zip(("--data", "--models"), (job.data, job.models), targets, strict=True):
        if folder:
            source = real_source(folder.source, job.project, flag, state=state)
            mounts.append(Mount(source=source, target=target, read_only=folder.read_only))
    return mounts


def _hostname(job: Job, engine: EngineFacts, run_id: str) -> str | None:
    """Return the run's name where it will resolve, else None: gloo and torchrun look their own name up.

    A name of ours does not resolve on the host's network, on none, or on another container's (measured: Docker 20.10,
    Podman 4.3); Podman's default network may be the host's, by containers.conf.
    """
    if job.network == "none":
        return "localhost"
    if job.network is None and engine.configured_network:
        return None
    if job.network is not None and (job.network == "host" or job.network.startswith(("container:", "ns:"))):
        return None
    return re.sub(r"[^a-zA-Z0-9-]+", "-", job.name or run_id)[:63].strip("-") or None  # a DNS label, RFC 1123


def _root_choice(job: Job) -> Choice:
    reason = "a script can write only to the project, HOME, /models and /tmp; --writable allows more"
    if job.writable:
        reason = "--writable; results written there are copied to the run's outputs at its end"
    return Choice(what="root file system", value="writable" if job.writable else "read-only", reason=reason)


def _warnings(job: Job, site: Site, memory_bytes: int | None) -> tuple[str, ...]:
    warnings = []
    if job.publish and job.network == "host":
        warnings.append("--publish has no effect with --network host: the container's ports are the host's")
    elif chosen := [each for each in job.publish if ":" not in each]:
        show = f"{site.engine.name} ps"
        warnings.append(f"--publish {', '.join(chosen)}: the engine chooses the host port; to show it: {show}")
    warnings += memory_warnings(job, memory_bytes)
    local = [name for name, url in proxy_env(site.host).items() if re.search(r"//(localhost|127\.|\[::1\])", url)]
    if local and job.network != "host":
        proxy = f"{', '.join(local)}: a proxy on this host's loopback"
        warnings.append(f"{proxy} is unreachable from the container; use --network host")
    return tuple(warnings)

"""Job + facts → ContainerPlan: a container that typical scripts survive. Changes nothing; reads env files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.backends.base import EngineFacts
from seatrial.backends.env_file import proxy_env, read_env_file
from seatrial.backends.home import home_env, home_mounts
from seatrial.backends.injection import InjectionPlan
from seatrial.backends.masks import masks
from seatrial.backends.mount_sources import real_source
from seatrial.backends.user_mounts import inside, parse_mount, place_mounts
from seatrial.errors import EngineError, UsageError
from seatrial.job.model import Job
from seatrial.job.plan import (
    AGENT_PYTHON_FLAGS,
    CHECKS_ROLE,
    CONTAINER_AGENT,
    CONTAINER_DATA,
    CONTAINER_MODELS,
    CONTAINER_PLAN,
    CONTAINER_PROJECT,
    CONTAINER_RUN,
    CONTAINER_SECRETS,
    FRAMED_LOG,
    LOG_LABEL,
    NAME_LABEL,
    PLAIN_LOG,
    ROLE_LABEL,
    RUN_LABEL,
    TARGET_ROLE,
    Choice,
    ContainerPlan,
    ImagePlan,
    Mount,
    Tmpfs,
)
from seatrial.job.units import format_bytes

#: DataLoader workers hand batches over through /dev/shm; a batch of 256 ImageNet images is 154 MB in float32, and
#: each worker holds two. Docker's default of 64 MB ends in "Bus error". PyTorch's README asks for more by --ipc=host.
SHM_BYTES_PER_GPU = 2 * 2**30

#: Programs and libraries are run from /tmp: torch's and Triton's compilers, pip's builds. Docker's default is noexec.
TMP = Tmpfs(target="/tmp", options="exec,mode=1777")

#: What a root inside the container gets back: to write where the caller may write, and to unpack archives, which root
#: does with their owners. An ordinary user needs none.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")

#: What steers the loader, the C library or Python in every process that has it: the target's business, and not that of
#: PID 1, whose evidence such a library in the project could forge. Source: ld.so(8); glibc manual, "Environment
#: Variables"; python(1).
STEERING = re.compile(r"LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|(LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|TZDIR)$")
OURS = {"PYTHONUNBUFFERED": "1"}

#: Processes and threads of a container, at most, and no more than half of what its host can have: a fork bomb ends
#: there and not in the host. 64 data loaders of 64 threads each have room.
PIDS = 32768

#: Where the companion's agent writes, in the run's record.
COMPANION_FOLDER = "companion"

#: What a container leaves of the host's memory to the host, unless --memory says otherwise: a twentieth, and this much
#: at least. A script that takes all then ends itself and not the machine's sshd.
HOST_MEMORY_SHARE = 20
HOST_MEMORY_LEAST_BYTES = 512 * 2**20

#: On top of the grace that the agent gives the target, for the agent itself to finish the evidence, in seconds.
AGENT_GRACE_S = 10

#: Frameworks that can be told to stay below a limit without a change to the script:
#: torch.cuda.set_per_process_memory_fraction and tf.config.set_logical_device_configuration.
LIMITED_FRAMEWORKS = frozenset({"torch", "tensorflow"})

#: Devices that only --gpus may ask for, or the contract would compare with the wrong list.
GPU_DEVICE = re.compile(r"^/dev/(nvidia|dxg)|^[a-z.]*nvidia\.com/")


@dataclass(frozen=True)
class ContainerParts:
    """The container, and the one beside it for the GPU checks when its image has no Python >= 3.8.

    Attributes:
        target_env: variables of the user's that the target gets from the agent, and PID 1 itself does not have.
    """

    container: ContainerPlan
    target_env: dict[str, str]
    companion: ContainerPlan | None
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]


def gpu_memory_enforceable(framework: str | None) -> bool:
    """Whether ``--gpu-memory`` can be kept: CUDA itself has no limit that a process cannot pass."""
    return framework in LIMITED_FRAMEWORKS


def plan_container(
    job: Job,
    *,
    run_id: str,
    record: Path,
    place: Path,
    state: Path,
    image: ImagePlan,
    engine: EngineFacts,
    injection: InjectionPlan,
    agent_archive: Path,
    secrets_folder: Path | None,
    resumed: Mount | None,
    uid: int,
    gid: int,
    user_name: str,
    cache_folder: Path,
    environ: Mapping[str, str],
    gpu_count: int,
    host_memory_bytes: int | None,
    host_pids: int | None = None,
    command: Sequence[str],
) -> ContainerParts:
    """Everything about the container but the image.

    Args:
        record, place: the run's two folders (runs/store.py). state: the user's state folder, which no container sees.
        agent_archive, secrets_folder, cache_folder: absolute host paths; home.host_files makes what is
            not there yet.
        uid, gid, user_name: of the caller, to whom outputs shall belong.
        environ: the caller's environment: proxies, and names without a value in env files.
        command: what PID 1 runs.

    Raises:
        UsageError: a mount, env file, device or working directory that cannot be meant.
        EngineError: a limit that this engine cannot enforce.
    """
    _refuse_unenforceable(job, engine)
    _refuse_gpu_devices(job)
    user, userns, user_choice = _user(engine, uid, gid)
    named_user = engine.name == "docker" and user != "0:0"  # Podman writes a passwd entry by itself
    ours = [
        *_job_mounts(job, state),
        *home_mounts(record, place, cache_folder, named_user=named_user),
        *_agent_mounts(record, place, agent_archive, secrets_folder, resumed),
        *injection.mounts,
    ]
    mounts = place_mounts([parse_mount(text, job.project, state) for text in job.mounts], ours)
    env, env_warnings = _env(job, image, injection, user_name, environ)
    target_env: dict[str, str] = {}
    if image.python is not None:
        _refuse_planted_python(image.python, mounts)
        target_env = {name: value for name, value in env.items() if STEERING.match(name) and value != OURS.get(name)}
        env = {name: value for name, value in env.items() if name not in target_env}
        env.update(_library_path(injection, {}, image.env))
        filled = [mount for mount in mounts if mount not in injection.mounts]
        for name, value in image.env.items():
            if STEERING.match(name) and (safe := _unsteered(name, env.get(name, value), filled)) != value:
                env[name] = safe
                target_env.setdefault(name, value)
    shm_bytes, shm_choice = _shm(job, gpu_count)
    memory_bytes, memory_choice = _memory(job, engine, host_memory_bytes)
    plan = ContainerPlan(
        name=f"seatrial-{run_id}",
        hostname=_hostname(job, engine, run_id),
        command=tuple(command),
        user=user,
        userns=userns,
        capabilities=ROOT_CAPABILITIES if user == "0:0" else (),
        security_opts=("label=disable",) if engine.selinux else (),
        groups=injection.groups,
        workdir=_workdir(job),
        env=env,
        mounts=mounts,
        tmpfs=(
            *(() if any(mount.target == TMP.target for mount in mounts) else (TMP,)),
            *masks(mounts, [state, job.project / ".seatrial"]),
        ),
        devices=(*injection.devices, *job.devices),
        gpus_flag=injection.gpus_flag,
        runtime=injection.runtime,
        network=job.network,
        network_alias=_network_alias(job),
        publish=job.publish,
        ulimits=job.ulimits,
        cpus=job.cpus,
        memory_bytes=memory_bytes,
        pids=min(PIDS, host_pids // 2) if host_pids else PIDS,
        shm_bytes=shm_bytes,
        read_only_root=not job.writable,
        labels={
            RUN_LABEL: run_id,
            NAME_LABEL: job.name or "",
            ROLE_LABEL: TARGET_ROLE,
            LOG_LABEL: FRAMED_LOG if image.python is not None else PLAIN_LOG,
        },
        stop_timeout_s=math.ceil(job.grace_s) + AGENT_GRACE_S,
    )
    companion = plan_companion(plan, injection, record) if image.python is None else None
    choices = (user_choice, shm_choice, *memory_choice, _root_choice(job), *_selinux_choice(engine))
    return ContainerParts(plan, target_env, companion, choices, (*env_warnings, *_warnings(job, environ)))


def plan_companion(container: ContainerPlan, injection: InjectionPlan, record: Path) -> ContainerPlan:
    """The container that checks the GPUs for one whose image has no Python >= 3.8: the same way in, nothing else.

    It sees neither project nor data nor secrets, and its network is shut. No target runs in it, so it may write its
    evidence into a folder of the record.
    """
    injected = {mount.target for mount in injection.mounts} | {CONTAINER_AGENT, CONTAINER_PLAN}
    evidence = Mount(source=record / COMPANION_FOLDER, target=CONTAINER_RUN)
    return ContainerPlan(
        name=f"{container.name}-checks",
        hostname=None,
        command=("python3", *AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN),
        user=container.user,
        userns=container.userns,
        capabilities=container.capabilities,
        security_opts=container.security_opts,
        groups=container.groups,
        workdir=CONTAINER_RUN,
        env={"PYTHONUNBUFFERED": "1", "HOME": "/tmp", **injection.env, **_library_path(injection, {}, {})},
        mounts=(*(mount for mount in container.mounts if mount.target in injected), evidence),
        tmpfs=(TMP,),
        pids=PIDS,
        devices=injection.devices,
        gpus_flag=injection.gpus_flag,
        runtime=injection.runtime,
        network="none",
        labels={**container.labels, ROLE_LABEL: CHECKS_ROLE},
    )


def _user(engine: EngineFacts, uid: int, gid: int) -> tuple[str, str | None, Choice]:
    """Whom the container runs as, so that its files belong to the caller."""
    if engine.rootless and engine.name == "podman":
        user, userns, reason = f"{uid}:{gid}", "keep-id", "rootless Podman maps the caller to itself (keep-id)"
    elif engine.rootless:
        user, userns, reason = "0:0", None, "rootless Docker maps the caller to root inside: outputs are the caller's"
    else:
        user, userns, reason = f"{uid}:{gid}", None, "the caller's own uid and gid: outputs are the caller's"
    return user, userns, Choice(what="user", value=f"{user} {userns or ''}".rstrip(), reason=reason)


def _job_mounts(job: Job, state: Path) -> list[Mount]:
    mounts = [Mount(source=job.project, target=CONTAINER_PROJECT)]
    for flag, folder, target in (("--data", job.data, CONTAINER_DATA), ("--models", job.models, CONTAINER_MODELS)):
        if folder:
            source = real_source(folder.source, job.project, flag, state=state)
            mounts.append(Mount(source=source, target=target, read_only=folder.read_only))
    return mounts


def _agent_mounts(
    record: Path, place: Path, agent_archive: Path, secrets_folder: Path | None, resumed: Mount | None
) -> list[Mount]:
    mounts = [
        Mount(source=place / "outputs", target=CONTAINER_RUN),
        Mount(source=agent_archive, target=CONTAINER_AGENT, read_only=True),
        Mount(source=record / "agent.json", target=CONTAINER_PLAN, read_only=True),
    ]
    if secrets_folder:  # writable: the agent deletes each secret once it has read it
        mounts.append(Mount(source=secrets_folder, target=CONTAINER_SECRETS))
    if resumed:
        mounts.append(resumed)
    return mounts


def _env(
    job: Job, image: ImagePlan, injection: InjectionPlan, user_name: str, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables on top of the image's: ours, then env files, then ``--env``. Never a secret.

    PYTHONUNBUFFERED: without it the last lines before a crash are lost in a buffer.
    """
    from_user: dict[str, str] = {}
    for path in job.env_files:
        from_user.update(read_env_file(path, environ))
    from_user.update(job.env)
    ours = {**home_env(user_name), **OURS, **proxy_env(environ), **injection.env}
    if job.cpus is not None:
        # torch and OpenBLAS count the host's cores, not the quota's: more threads than it grants stall each other.
        ours["OMP_NUM_THREADS"] = str(max(1, math.ceil(job.cpus)))
    secret = [name for name in job.secrets if name in from_user]
    env = {name: value for name, value in {**ours, **from_user}.items() if name not in job.secrets}
    env.update(_library_path(injection, from_user, image.env))
    warnings = tuple(f"{name} is a secret: its value from --env is not used" for name in secret)
    hijacked = sorted(from_user.keys() & injection.env.keys())
    if hijacked:
        warnings += (f"{', '.join(hijacked)}: set by you, so the GPUs that CUDA shows may not be those of the plan",)
    return env, warnings


def _library_path(
    injection: InjectionPlan, from_user: Mapping[str, str], from_image: Mapping[str, str]
) -> dict[str, str]:
    """LD_LIBRARY_PATH with the driver's folder last, where the linker's cache that it stands for would come.

    Last, so that an image's CUDA forward-compatibility libraries win over the host's driver, as their author meant.
    """
    if not injection.driver_library_folders:
        return {}
    path = from_user.get("LD_LIBRARY_PATH", from_image.get("LD_LIBRARY_PATH", ""))
    folders = [folder for folder in path.split(":") if folder and folder not in injection.driver_library_folders]
    return {"LD_LIBRARY_PATH": ":".join([*folders, *injection.driver_library_folders])}


def _unsteered(name: str, value: str, filled: Sequence[Mount]) -> str:
    """What PID 1 gets in place of an image's variable: of a path to libraries, folders that no mount fills; else "".

    An empty entry, as ``ENV LD_LIBRARY_PATH=/opt:$LD_LIBRARY_PATH`` leaves one, is the working directory (ld.so(8)).
    """
    if name != "LD_LIBRARY_PATH":
        return OURS.get(name, "")
    folders = [folder for folder in value.split(":") if folder.startswith("/")]
    return ":".join(folder for folder in folders if not any(inside(folder, mount.target) for mount in filled))


def _refuse_planted_python(python: str, mounts: Sequence[Mount]) -> None:
    """The agent is PID 1, whose word the receipt is made on: its Python comes from the image."""
    if any(inside(python, folder) for folder in (*(mount.target for mount in mounts), TMP.target)):
        raise UsageError(
            f"The agent's Python {python} would come from a mount, where the target can write its own",
            cause="The agent's word is the evidence of the run; its interpreter has to be part of the image",
            run="seatrial run … without [image] python, or with one that the image holds",
        )


def _shm(job: Job, gpu_count: int) -> tuple[int, Choice]:
    if job.shm_bytes is not None:
        size, reason = job.shm_bytes, "--shm-size"
    else:
        size = SHM_BYTES_PER_GPU * max(1, gpu_count)
        reason = "2 GiB × max(1, GPUs): DataLoader workers pass batches through it; engines default to 64 MB"
        # /dev/shm counts as memory. At half the limit, as the kernel sizes a tmpfs of its own, a script that fills
        # it meets "no space", which names the cause, and not the OOM killer, which does not.
        if job.memory_bytes is not None and size > job.memory_bytes // 2:
            size, reason = job.memory_bytes // 2, "half of --memory, which it counts towards"
    return size, Choice(what="/dev/shm", value=format_bytes(size), reason=reason)


def _memory(job: Job, engine: EngineFacts, host_memory_bytes: int | None) -> tuple[int | None, tuple[Choice, ...]]:
    if job.memory_bytes is not None or not engine.memory_limits or host_memory_bytes is None or engine.desktop:
        return job.memory_bytes, ()
    size = host_memory_bytes - max(HOST_MEMORY_LEAST_BYTES, host_memory_bytes // HOST_MEMORY_SHARE)
    if size < HOST_MEMORY_LEAST_BYTES:
        return None, ()
    reason = f"of this host's {format_bytes(host_memory_bytes)}; the rest keeps the host alive; --memory sets another"
    return size, (Choice(what="memory", value=format_bytes(size), reason=reason),)


def _network_alias(job: Job) -> str | None:
    """This node's name among several, on a network that has names: not the host's, nor the engine's default."""
    if job.node_rank is None or job.network in (None, "host", "none", "bridge"):
        return None
    return job.hosts[job.node_rank]


def _hostname(job: Job, engine: EngineFacts, run_id: str) -> str | None:
    """The run's name where it will resolve, else what the engine gives: gloo and torchrun look their own name up.

    A name of ours does not resolve on the host's network, on none, or on another container's (measured: Docker 20.10,
    Podman 4.3); Podman's default network may be the host's, by containers.conf.
    """
    if job.network == "none":
        return "localhost"
    if job.network is None and engine.name == "podman":
        return None
    if job.network is not None and (job.network == "host" or job.network.startswith(("container:", "ns:"))):
        return None
    name = re.sub(r"[^a-zA-Z0-9-]+", "-", job.name or run_id)[:63].strip("-")  # a DNS label, RFC 1123
    return name or None


def _workdir(job: Job) -> str:
    if job.workdir is None:
        return CONTAINER_PROJECT
    if not job.workdir.startswith("/"):
        raise UsageError(
            f"--workdir {job.workdir!r} must be an absolute path in the container; the project is {CONTAINER_PROJECT}",
            run=f"seatrial run … --workdir {CONTAINER_PROJECT}/{job.workdir}",
        )
    return job.workdir


def _root_choice(job: Job) -> Choice:
    if job.writable:
        return Choice(what="root file system", value="writable", reason="--writable; what is written there is lost")
    return Choice(
        what="root file system",
        value="read-only",
        reason="what a script writes lands in the project, HOME, /models or /tmp, or fails; --writable opens it",
    )


def _selinux_choice(engine: EngineFacts) -> tuple[Choice, ...]:
    if not engine.selinux:
        return ()
    reason = "SELinux is on: mounts would have to be relabelled, which changes the user's own folders for good"
    return (Choice(what="SELinux label", value="disabled for this container", reason=reason),)


def _warnings(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    warnings = []
    if job.publish and job.network == "host":
        warnings.append("--publish has no effect with --network host: the container's ports are the host's")
    if job.shm_bytes and job.memory_bytes and job.shm_bytes > job.memory_bytes:
        warnings.append(
            f"--shm-size {format_bytes(job.shm_bytes)} is more than --memory {format_bytes(job.memory_bytes)}: "
            "a script that fills it is killed"
        )
    local = [name for name, url in proxy_env(environ).items() if re.search(r"//(localhost|127\.|\[::1\])", url)]
    if local and job.network != "host":
        warnings.append(
            f"{', '.join(local)}: a proxy on this host's loopback is out of the container's reach; --network host"
        )
    return tuple(warnings)


def _refuse_unenforceable(job: Job, engine: EngineFacts) -> None:
    asked = [("--cpus", job.cpus, engine.cpu_limits), ("--memory", job.memory_bytes, engine.memory_limits)]
    for flag, value, enforced in asked:
        if value is not None and not enforced:
            raise EngineError(
                f"{engine.name.capitalize()} cannot enforce {flag} here",
                cause="it runs rootless and the user has no cgroup controllers of that kind (cgroup v2 delegation)",
                run="sudo mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset io "
                "memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf && "
                "sudo systemctl daemon-reload",
            )


def _refuse_gpu_devices(job: Job) -> None:
    for device in job.devices:
        if GPU_DEVICE.match(device):
            raise UsageError(
                f"--device {device} is a GPU: it would come in past the request that the run is checked against",
                run="seatrial run … --gpus device=0",
            )

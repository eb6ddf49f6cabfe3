"""Plan: a Job resolved against facts. Pure data: printable, diffable, written to plan.json before anything starts.

Backends compile a Plan into an engine-level request; the agent reads the key ``agent`` alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from seatrial.common.agent_plan import AgentPlan, Terminal, known
from seatrial.job.cluster import ClusterPlan
from seatrial.job.keys import Mount as Mount  # part of a plan for its readers
from seatrial.job.model import Job
from seatrial.job.value import Value
from seatrial.system.names import Names, secret_words
from seatrial.system.records import typed

SCHEMA_VERSION = 1

GpuMode = Literal["required", "none", "auto-cpu"]
Check = Literal["torch", "tensorflow", "jax", "driver", "none"]
#: none: no GPU. nvidia-runtime: ``--gpus`` (toolkit's hook or, from Docker 29.2, CDI inside). cdi: ``--device
#: nvidia.com/gpu=…``. device-nodes: /dev/nvidia* and the driver's libraries bind-mounted. host: a local process.
#: device-plugin: the plugin of the node that Kubernetes picks. resource-claim: each pod has a ResourceClaim.
Injection = Literal["none", "nvidia-runtime", "cdi", "device-nodes", "host", "device-plugin", "resource-claim"]


#: Largest plan.json that is read: it holds the texts of a ConfigMap's script and of a Dockerfile. JSON takes up to
#: forty times its size in memory.
MAX_BYTES = 4 << 20


class Choice(Value):
    """One decision and its reason, shown by ``seatrial plan``."""

    what: str
    value: str
    reason: str


class Gpu(Value):
    """A GPU, or MIG slice, as NVML names it.

    Attributes:
        index: NVML index of the (parent) GPU; PCI bus order.
        uuid: ``GPU-…`` or ``MIG-…``; what the contract compares.
        minor: N of /dev/nvidiaN, or None where unknown.
        mig: ``"0:1"`` (GPU index : MIG index) for a slice, else None.
        cdi_name: the device's name in the CDI spec, when one lists it.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: str | None = None
    minor: int | None = None
    mig: str | None = None
    cdi_name: str | None = None


def gpu_models(gpus: Sequence[Gpu]) -> str:
    """Return the distinct models of GPUs, as in ``gpu`` of ``[tune]``: ``none`` without a GPU."""
    return ", ".join(sorted({gpu.name for gpu in gpus})) or "none"


class Tmpfs(Value):
    """A tmpfs: its target and mount options, e.g. ``("/tmp", "exec,mode=1777")``."""

    target: str
    options: str


class ImagePlan(Value):
    """The image: one to build (``dockerfile`` is its text) or a ready one.

    Attributes:
        tag: what is run. For a built image its digits are the hash of everything that goes in.
        python: interpreter inside the image, or None without a Python >= 3.8.
        entrypoint, cmd: of a ready image; run through the agent as they are.
        plain_dockerfile: one that needs no build context, for other people's tools; None where there can be none.
        context_files: path in the build context → absolute host path.
        context_texts: path in the build context → text of a generated file.
        own_wheel: file name in the build context of our own wheel (training library and recipes), or None.
        secrets: build secret id → absolute host path.
        stack: what was resolved, e.g. ``{"torch": "2.13.0", "build": "cu126", "python": "3.11"}``; also labels.
        index_decides: the user names package indexes, and which build of the framework they have is theirs.
        packages_bytes: of packages other than the framework, unpacked, as far as it is known.
        also: frameworks other than the one of ``stack``, and their builds: ``{"jax": "cuda13"}``.
        slimmed: the build leaves things out (image.slim). architectures: compute capabilities that are left in it;
            () for all that the packages have.
        warnings: what the user should know of it before it is built.
    """

    tag: str
    build: bool
    base: str | None = None
    python: str | None = "python3"
    dockerfile: str | None = None
    plain_dockerfile: str | None = None
    context_files: dict[str, str] = Field(default_factory=dict)
    context_texts: dict[str, str] = Field(default_factory=dict)
    own_wheel: str | None = None
    secrets: dict[str, str] = Field(default_factory=dict)
    network: str = "default"
    stack: dict[str, str] = Field(default_factory=dict)
    index_decides: bool = False
    packages_bytes: int = 0
    also: dict[str, str] = Field(default_factory=dict)
    slimmed: bool = False
    architectures: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _read_agent(value: Any) -> AgentPlan:
    if isinstance(value, AgentPlan):
        return value
    keys = {**value, "gpus": [Gpu.model_validate(gpu) for gpu in value.get("gpus", ())]}
    if terminal := keys.get("terminal"):
        keys["terminal"] = Terminal(**known(terminal, Terminal._fields))
    try:
        return typed(AgentPlan, keys)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _written_agent(agent: AgentPlan) -> dict[str, Any]:
    values = {**agent._asdict(), "terminal": agent.terminal and agent.terminal._asdict()}
    return {name: value for name, value in values.items() if name not in ("injection", "mounts")}


class ContainerPlan(Value):
    """The container, in the engines' common terms. Docker and Podman compile it to their own flags.

    Attributes:
        hostname: None: the engine's own choice (with the host's network, the host's name: it must resolve).
        command: what PID 1 runs (the agent and its arguments).
        capabilities: added back after all are dropped, e.g. ``DAC_OVERRIDE`` for a root that must write.
        security_opts: on top of ``no-new-privileges``, e.g. ``label=disable``.
        user: ``uid:gid`` or None for the image's own.
        userns: ``keep-id`` on rootless Podman, else None.
        groups: supplementary groups, e.g. the one that may open /dev/nvidia*.
        devices: device nodes to pass; for ``cdi`` the qualified names.
        network_alias: a further name on a network of the user's, by which other nodes find this one.
        gpus_flag: argument of Docker's ``--gpus`` without the shell's quotes (``"device=0,2"`` keeps its inner
            ones), or None.
        pids: processes and threads, at most.
    """

    name: str
    hostname: str | None
    command: tuple[str, ...]
    user: str | None
    capabilities: tuple[str, ...] = ()
    security_opts: tuple[str, ...] = ()
    userns: str | None = None
    groups: tuple[str, ...] = ()
    workdir: str
    env: dict[str, str] = Field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()
    devices: tuple[str, ...] = ()
    gpus_flag: str | None = None
    runtime: str | None = None
    network: str | None = None
    network_alias: str | None = None
    publish: tuple[str, ...] = ()
    ulimits: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    shm_bytes: int = 2 * 2**30
    read_only_root: bool = True
    labels: dict[str, str] = Field(default_factory=dict)
    stop_timeout_s: int = 40


class VenvPlan(Value):
    """A managed virtual environment of the local backend, made before the start where it is not there yet.

    Attributes:
        directory: holds one folder per content. base: the interpreter it is based on.
        requirements: lines of a requirements file.
    """

    directory: Path
    base: Path
    requirements: tuple[str, ...]


class EngineAddress(Value):
    """The engine that a run is on, which any other terminal must contact in place of its own.

    Attributes:
        endpoint: where the client reaches it: a URL of Docker's or Podman's service or of a cluster's API server, the
            storage folder of a Podman without a service, the name of the machine of a process.
        id: its own name for itself: at the same endpoint, another engine has another.
    """

    endpoint: str = Field(pattern=r"^[A-Za-z0-9/][^\s\x00-\x1f]*$")  # never a flag of an engine
    id: str
    credentials: str | None = None


class Plan(Value):
    """All that will happen.

    Attributes:
        run_id: ID of the run this plan makes; also its folder's name.
        engine: where it will run; None if the backend cannot determine it.
        image: None on the local backend.
        container: None on the local backend and on a cluster. cluster: the pods, on Kubernetes.
        interpreter: what the agent runs on, where it is not the image's Python or this machine's.
        python: interpreter of the local backend, which runs agent and target. venv: where it must be made first.
        injection: how the GPUs get in.
        warnings: sentences printed before the start and kept in the receipt.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created_at: str
    job: Job
    backend: str
    engine: EngineAddress | None = None
    injection: Injection
    gpus: tuple[Gpu, ...]
    image: ImagePlan | None = None
    container: ContainerPlan | None = None
    cluster: ClusterPlan | None = None
    interpreter: str | None = None
    python: str | None = None
    venv: VenvPlan | None = None
    agent: Annotated[AgentPlan, PlainValidator(_read_agent), PlainSerializer(_written_agent)]
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    git_commit: str | None = None
    driver_version: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, data: Any) -> Any:
        """Drop what a plan of 0.1 has for its stages and its second container; such runs may still end under this
        version.
        """
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if key not in ("view", "companion", "companion_image")}
            if isinstance(job := data.get("job"), dict):
                data["job"] = {key: value for key, value in job.items() if key != "outputs"}
        return data

    @property
    def shown_target(self) -> str:
        """Return the target for display, without secrets: a Compose service's command, or the target's own line."""
        target = self.job.target
        return Names(secrets=secret_words(target.args)).text(target.command or self.target_line)

    @property
    def target_line(self) -> str:
        """Return the target as typed behind ``seatrial run``: ``train.py -- --epochs 5``; or ``serve digits``."""
        target = self.job.target
        if self.job.serve is not None:
            return f"serve {self.job.serve.typed}"
        own = {"module": ["-m", target.value], "image": ["--image", self.job.image.ready or ""]}
        words = own.get(target.kind, [target.value])
        line = target.typed or shlex.join([*words, *(["--", *target.args] if target.args else [])])
        return f"tune {line}" if self.job.tuning is not None else line

    @property
    def engine_endpoint(self) -> str | None:
        return None if self.engine is None else self.engine.endpoint

    @property
    def devices(self) -> str:
        """Name the devices: ``GPU 0 (NVIDIA H200)``, ``CPU``, ``1 GPU of h100``, ``2 pods with 4 nvidia.com/gpu``."""
        gpus = ", ".join(f"GPU {gpu.mig or gpu.index} ({gpu.name})" for gpu in self.gpus) or "CPU"
        if not self.gpus and self.on_this_host and (count := self.gpus_asked):  # of another machine
            every = any(choice.what == "gpus" and choice.value == "all" for choice in self.choices)
            gpus = f"{'all GPUs' if every else f'{count} GPU' + 's' * (count > 1)} of {self.job.image.target}"
        if self.cluster is not None and self.cluster.gpus:
            claim = self.cluster.claim
            gpus = f"{self.cluster.gpus} {claim.device_class if claim else self.cluster.gpu_resource}"
        if self.cluster is not None and self.cluster.nodes > 1:
            gpus = f"{self.cluster.nodes} pods with {gpus}"
        return gpus

    @property
    def gpus_asked(self) -> int:
        """Count the GPUs of the whole run: on a cluster those of all pods, which nobody can name before the start."""
        count = self.agent.gpu_count
        return len(self.gpus) if count is None else count * self.agent.nodes

    @property
    def on_this_host(self) -> bool:
        """Return whether its containers or processes are on this machine; else a cluster places its pods."""
        return self.cluster is None

    @property
    def on_the_host(self) -> bool:
        """Return whether it runs as a process of this machine: no container and no pod around it."""
        return self.image is None

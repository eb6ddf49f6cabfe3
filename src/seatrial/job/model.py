"""Job: what the user asks for, from seatrial.toml and flags. Pure data, validated strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from seatrial.job.asks import Ask
from seatrial.job.cluster import ClusterOptions

Launcher = Literal["auto", "torchrun", "none"]
Flavour = Literal["base", "runtime", "cudnn-runtime", "devel"]
SlimLevel = Literal["none", "files", "unused", "arch"]
TargetKind = Literal["script", "module", "recipe", "image"]


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; instances are not changed in place."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Target(Strict):
    """What to run.

    Attributes:
        kind: ``script`` (a path), ``module`` (``-m name``), ``recipe`` (built in) or ``image`` (its own CMD).
        value: the path relative to the project, module name, recipe name, or "" for an image's own command.
        args: the target's own arguments, everything after ``--``.
    """

    kind: TargetKind
    value: str
    args: tuple[str, ...] = ()


class DataMount(Strict):
    """A host folder for /data or /models."""

    source: Path
    read_only: bool


class ImageOptions(Strict):
    """The ``[image]`` table: how the image is made.

    Attributes:
        base: image the build starts from.
        ready: a finished image to run as it is (``--image``); nothing is built then.
        python: interpreter inside a ready image, where it is not one of the usual places; Python >= 3.8.
        ca_bundle: PEM file of extra certificate authorities, trusted in the build only.
        index_url: package index for pip, passed as a build secret (it may hold a password).
        find_links: folder or URL of wheels for pip.
        build_network: ``default``, ``host`` or ``none``.
        requirements: further packages for pip, on top of what the project names.
        system_packages: Debian packages the image needs at run time.
        target: machine to build for (``h100``, ``driver=535.129,gpu=A4000``); None: the one that plans.
        flavour: an nvidia/cuda base of this kind instead of slim Python; None: by need.
        torch_index: mirror of https://download.pytorch.org/whl; the build's name (``cu126``) is appended.
        slim: how much is left out of the image; docs/images.md says what each level does.
        max_size_bytes, max_compressed_bytes: larger images fail ``seatrial build``; None: no budget.
    """

    base: str = "python:3.11-slim-bookworm"
    ready: str | None = None
    python: str | None = None
    ca_bundle: Path | None = None
    index_url: str | None = None
    find_links: str | None = None
    build_network: Literal["default", "host", "none"] = "default"
    requirements: tuple[str, ...] = ()
    system_packages: tuple[str, ...] = ()
    target: str | None = None
    flavour: Flavour | None = None
    torch_index: str | None = None
    slim: SlimLevel = "none"
    max_size_bytes: int | None = None
    max_compressed_bytes: int | None = None


class Criteria(Strict):
    """The ``[criteria]`` table: what a good run is.

    Attributes:
        mean_utilization_pct: least mean GPU utilisation over the training window; None: not checked.
        finished_within_s: the run's longest wall time in seconds; None: not checked.
        model: globs, relative to the models folder and then to the project, one of which must match a
            new file that is not empty; () means the usual model suffixes.
        max_image_bytes: largest image; None: not checked.
        metrics: metric name → condition on its last reported value, e.g. ``{"accuracy": ">= 0.985"}``.
    """

    mean_utilization_pct: float | None = 70.0
    finished_within_s: float | None = None
    model: tuple[str, ...] = ()
    max_image_bytes: int | None = 4_000_000_000
    metrics: dict[str, str] = Field(default_factory=dict)


class WatchOptions(Strict):
    """The ``[watch]`` table: what the watchdog looks for while the run goes on, and whom it tells.

    Attributes:
        hang_after_s: seconds without a step, output or computing after which it speaks of a hang; None: never.
        command: run by /bin/sh where the target runs, for each finding.
        webhook: URL that each finding is posted to, from where the target runs.
    """

    hang_after_s: float | None = 300.0
    command: str | None = None
    webhook: str | None = None


class Job(Strict):
    """Everything the user asked for.

    Attributes:
        project: the folder that becomes the working directory; absolute.
        backend: where to run, a name of backends/table.py; ``auto`` takes the first that works.
        gpus: the request as typed; parsed by job.gpus. On several nodes: those of each.
        nodes: machines, or pods. hosts: their names, where there is no cluster to find them.
        node_rank: which of the hosts this is; None: not joining, or no hosts.
        restarts: how often ranks that failed or were lost start again; None: 3 where they can go on from checkpoints.
        data, models: host folders for /data and /models.
        mounts: further ``SOURCE:TARGET[:ro|rw]`` mounts, as typed.
        env: variables for the target. ``env_files`` are read on the host and lose against ``env``.
        secrets: names of host variables whose values the target gets and no log ever shows.
        publish, devices, ulimits: as for ``docker run``.
        memory_bytes, shm_bytes, gpu_memory_bytes: limits in bytes; None: no limit, or the default.
        cpus: cores; None: no limit.
        timeout_s: after this many seconds the target gets SIGTERM, then SIGKILL after ``grace_s``.
        writable: the container's root is writable.
        strict: unmet criteria make the exit code 4.
        resume: ID of the run to go on from (its checkpoints are mounted where the target expects them).
        with_names: the receipt tells user name, host name and home folder.
        asks: what the project's file wants beyond its folder and a container; the user is asked for it.
    """

    project: Path
    target: Target
    name: str | None = None
    backend: str = "auto"
    gpus: str = "auto"
    nodes: int = 1
    hosts: tuple[str, ...] = ()
    node_rank: int | None = None
    restarts: int | None = None
    launcher: Launcher = "auto"
    data: DataMount | None = None
    models: DataMount | None = None
    mounts: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    env_files: tuple[Path, ...] = ()
    secrets: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    network: str | None = None
    workdir: str | None = None
    devices: tuple[str, ...] = ()
    ulimits: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    timeout_s: float | None = None
    grace_s: float = 30.0
    writable: bool = False
    strict: bool = False
    resume: str | None = None
    with_names: bool = False
    asks: tuple[Ask, ...] = ()
    image: ImageOptions = Field(default_factory=ImageOptions)
    criteria: Criteria = Field(default_factory=Criteria)
    watch: WatchOptions = Field(default_factory=WatchOptions)
    kubernetes: ClusterOptions = Field(default_factory=ClusterOptions)

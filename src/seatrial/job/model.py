"""Job: what the user asks for, from seatrial.toml and flags. Pure data, validated strictly.

A table of seatrial.toml and what a Job holds of it are one model: the file's key is the field's alias where the name
has a unit.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field, StrictBool, ValidationInfo, model_serializer, model_validator

from seatrial.job import keys
from seatrial.job.asks import Ask, notify_asks
from seatrial.job.cluster import ClusterOptions, Nodes, Restarts
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.in_container import CONTAINER_PROJECT, folder_inside
from seatrial.job.keys import DataMount as DataMount  # part of a job for its readers
from seatrial.job.keys import KeyTable, Listed, typed_keys
from seatrial.job.own_workload import OwnWorkload
from seatrial.job.tables import Changes, Notify, Retiring, Serving, SweepTable, Tuning

Launcher = Literal["auto", "torchrun", "none"]
Flavour = Literal["base", "runtime", "cudnn-runtime", "devel"]
SlimLevel = Literal["auto", "none", "files", "unused", "arch"]
TargetKind = Literal["script", "module", "recipe", "image"]


class Target(KeyTable):
    """Target of a run.

    Attributes:
        kind: ``script`` (a path), ``module`` (``-m name``), ``recipe`` (built in) or ``image`` (its own CMD).
        value: the path relative to the project, module name, recipe name, or "" for an image's own command.
        args: the target's own arguments, everything after ``--``.
        typed: the words after ``seatrial`` that made it, where a verb of its own did: ``export digits --to onnx``.
        command: a Compose service's command, for display.
    """

    kind: TargetKind
    value: str
    args: tuple[str, ...] = ()
    typed: str = ""
    command: str = ""

    def with_args(self, *args: str) -> Target:
        """Return the same target with these arguments."""
        return Target(kind=self.kind, value=self.value, args=args, typed=self.typed, command=self.command)


class ImageOptions(KeyTable):
    """Options for making the image."""

    base: keys.Image = Field(default="python:3.11-slim-bookworm", description="Image that the build starts from.")
    ready: keys.Image | None = Field(default=None, description="An existing image to run as is; nothing is built.")
    python: keys.Interpreter | None = Field(
        default=None, description="Python interpreter in an existing image, if not in a standard location."
    )
    ca_bundle: keys.PathLike | None = Field(
        default=None, description="PEM file of extra certificate authorities for the build."
    )
    index_url: keys.Index | None = Field(default=None, description="Package index for pip; kept out of the image.")
    find_links: keys.FolderOrUrl | None = Field(default=None, description="Folder or URL of wheels for pip.")
    build_network: Literal["default", "host", "none"] = Field(default="default", description="Network of the build.")
    requirements: keys.Listed[keys.Line] = Field(default=(), description="Additional pip packages.")
    system_packages: keys.Listed[keys.DebianPackage] = Field(
        default=(), description="Debian packages needed at run time."
    )
    target: str | None = Field(default=None, description="Machine to build for: h100, or driver=535.129,gpu=A4000.")
    flavour: Flavour | None = Field(default=None, description="Kind of nvidia/cuda base; slim Python by default.")
    torch_index: keys.Mirror | None = Field(default=None, description="Mirror of https://download.pytorch.org/whl.")
    as_of: keys.Day | None = Field(
        default=None, description="Day of the releases of unpinned packages, or today; default: the last code change."
    )
    slim: SlimLevel = Field(
        default="auto", description="How far to slim the image; seatrial plan shows the size at each level."
    )
    max_size_bytes: keys.Size | None = Field(
        default=None, validation_alias="max_size", description="Largest image that seatrial build accepts, on disk."
    )
    max_compressed_bytes: keys.Size | None = Field(
        default=None, validation_alias="max_compressed", description="Largest image, as compressed layers."
    )


def _metrics_in_table(schema: dict[str, Any]) -> None:
    """Let the file's schema accept any key that is not a criterion of ours as a metric's."""
    schema["additionalProperties"] = schema["properties"].pop("metrics")["additionalProperties"]


class Criteria(KeyTable):
    """Criteria for a good run. Any other key is a metric that the script reports, its value a condition.

    Those that were set (``model_fields_set``) were requested; a miss of the others is a warning in the receipt.
    """

    model_config = ConfigDict(json_schema_extra=_metrics_in_table)

    mean_utilization_pct: keys.Percent = Field(
        default=70.0,
        validation_alias="mean_utilization",
        description="Minimum mean GPU utilisation in percent; false: not checked.",
    )
    trained_on_gpu: bool = Field(
        default=True, description="Whether the optimizer's parameters must be on the GPU; false: not checked."
    )
    finished_within_s: Annotated[
        float | None, keys.or_false(keys.read_duration, keys.text("10m"), {"type": "number"})
    ] = Field(default=None, validation_alias="finished_within", description="Maximum run time; false: not checked.")
    max_image_bytes: Annotated[int | None, keys.or_false(keys.read_size, keys.text("4GB"))] = Field(
        default=4_000_000_000, validation_alias="max_image_size", description="Maximum image size; false: not checked."
    )
    model: keys.Globs = Field(default=(), description="Globs, one of which must match a new file that is not empty.")
    metrics: dict[str, keys.Condition] = Field(default_factory=dict)

    def only(self, *names: str, **more: Any) -> Criteria:
        """Return these of the criteria, as far as they were set, and ``more``."""
        return Criteria(**{name: getattr(self, name) for name in names if name in self.model_fields_set}, **more)

    @model_serializer(mode="wrap")
    def _only_what_was_set(self, handler: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep in a plan which criteria were requested."""
        return {key: value for key, value in handler(self).items() if key in self.model_fields_set}

    @model_validator(mode="before")
    @classmethod
    def _metrics(cls, table: Any, info: ValidationInfo) -> Any:
        """Collect the metrics, which a file has among the other criteria."""
        if info.context is None or not isinstance(table, dict):
            return table
        own_keys = typed_keys(cls).keys() - {"metrics"}
        own = {key: value for key, value in table.items() if key in own_keys}
        metrics = {key: value for key, value in table.items() if key not in own_keys}
        return {**own, "metrics": metrics} if metrics else own


class WatchOptions(Retiring):
    """Options of the watchdog: what it looks for during a run, and where it reports."""

    retired = ("webhook",)

    hang_after_s: Annotated[float | None, keys.or_false(keys.read_duration, keys.text("5m"), {"type": "number"})] = (
        Field(
            default=300.0,
            validation_alias="hang_after",
            description="Inactivity after which a run is reported as hung; false: never.",
        )
    )
    command: keys.Word | None = Field(default=None, description="Shell command run in the container for each finding.")


class Requests(KeyTable):
    """Options that a file and a Job have in common."""

    name: keys.Name | None = Field(default=None, description="Name of the run.")
    backend: str = Field(
        default="auto", validation_alias="on", description="Where to run: auto, docker, podman, local or k8s."
    )
    gpus: keys.Gpus = Field(
        default=GpuRequest("auto"),
        description="GPU request; a whole number is a count.",
        json_schema_extra={"title": "Gpus", "default": "auto"},
    )
    restarts: Restarts | None = Field(
        default=None, description="Maximum restarts of failed ranks; 3 if they can resume from checkpoints, else 0."
    )
    launcher: Launcher = Field(
        default="auto", description="One process per GPU, or one for all; auto reads the script."
    )
    data: keys.Data | None = Field(
        default=None, description="Folder mounted read-only at /data; DIR:rw for read-write."
    )
    models: keys.Models | None = Field(default=None, description="Folder mounted at /models.")
    mounts: keys.Listed[keys.MountText] = Field(default=(), description="Additional mounts, SOURCE:TARGET[:ro|rw].")
    env: keys.Variables = Field(default={}, description="Variables for the target.")
    env_files: keys.Listed[keys.PathLike] = Field(
        default=(), description="Files of NAME=value lines; env wins over them."
    )
    secrets: keys.Listed[keys.Variable] = Field(
        default=(), description="Host variables passed to the target and hidden in every log."
    )
    publish: keys.Listed[keys.Port] = Field(default=(), description="Ports, as for docker run --publish.")
    network: keys.Network | None = Field(default=None, description="Network, as for docker run --network.")
    workdir: keys.Line | None = Field(default=None, description="Working directory; a relative one is of the project.")
    devices: keys.Listed[keys.Device] = Field(default=(), description="Additional devices, as for docker run --device.")
    ulimits: keys.Listed[keys.Ulimit] = Field(default=(), description="Limits, as for docker run --ulimit.")
    cpus: keys.Cores | None = Field(default=None, description="Cores.")
    memory_bytes: keys.Memory | None = Field(
        default=None, validation_alias="memory", description="Memory limit of the container."
    )
    shm_bytes: keys.Size | None = Field(
        default=None, validation_alias="shm_size", description="Size of /dev/shm; half of the memory by default."
    )
    gpu_memory_bytes: keys.Size | None = Field(
        default=None,
        validation_alias="gpu_memory",
        description="GPU memory limit for torch, TensorFlow and JAX scripts.",
    )
    timeout_s: keys.Duration | None = Field(
        default=None, validation_alias="timeout", description="Time limit, after which the target is stopped."
    )
    grace_s: keys.Duration = Field(
        default=30.0, validation_alias="grace", description="Time between SIGTERM and SIGKILL."
    )
    writable: StrictBool = Field(default=False, description="The container's root filesystem is writable.")
    no_hook: StrictBool = Field(default=False, description="Do not measure the steps of torch scripts from inside.")
    no_tune: StrictBool = Field(default=False, description="Leave out the changes of [tune].")
    strict: StrictBool = Field(default=False, description="Exit with 4 if criteria are not met, defaults included.")
    resume: str | None = Field(default=None, description="ID of the run to resume from.")
    with_names: StrictBool = Field(
        default=False, description="Include user name, host name and home folder in receipts."
    )
    image: ImageOptions = Field(default_factory=ImageOptions, description="How the image is made.")
    criteria: Criteria = Field(default_factory=Criteria, description="Criteria for a good run.")
    metrics: dict[str, keys.Pattern] = Field(default={}, description="Printed metrics: name = regular expression.")
    watch: WatchOptions = Field(default_factory=WatchOptions, description="What the watchdog checks during the run.")
    notify: Notify = Field(default_factory=Notify, description="Commands to run when the run has ended.")
    kubernetes: ClusterOptions = Field(default_factory=ClusterOptions, description="Kubernetes settings.")
    tune: Changes = Field(
        default_factory=Changes, description="Changes to a torch script, as seatrial tune found them."
    )


class Job(Requests):
    """Everything the user requested.

    Attributes:
        project: the folder that the target gets; absolute. workdir: a relative one is of the project.
        gpus: on several nodes those of each.
        nodes: machines, or pods. hosts: their names, without a cluster that finds them.
        node_rank: which of the hosts this is; None: not joining, or no hosts.
        env_files: read on the host; they lose against ``env``.
        memory_bytes, cpus: None: no limit. shm_bytes: None: the default.
        timeout_s: after this many seconds the target gets SIGTERM, then SIGKILL after ``grace_s``.
        serve: what it serves, of a run whose target is the server; else None.
        own: the user's own workload on Kubernetes, which the run is; else None.
        tuning: the request, of a run that tries changes on its script; else None.
        asks: what the project's file wants beyond its folder and a container; it needs the user's permission.
    """

    project: Path
    target: Target
    nodes: int = 1
    hosts: tuple[str, ...] = ()
    node_rank: int | None = None
    serve: Serving | None = None
    own: OwnWorkload | None = None
    tuning: Tuning | None = None
    asks: tuple[Ask, ...] = ()

    @property
    def without_notify(self) -> Job:
        """Return the job as a part of a sweep or of ``up``: the end of a part is not announced."""
        reported = set(notify_asks(self.notify))
        return self.changed(notify=Notify(), asks=tuple(ask for ask in self.asks if ask not in reported))

    @property
    def folder_inside(self) -> str:
        """Return the working directory in a container."""
        return folder_inside(self.workdir)

    @property
    def folder(self) -> Path:
        """Return the working directory on this machine; the project where it is none of its folders."""
        inside = posixpath.relpath(self.folder_inside, CONTAINER_PROJECT)
        return self.project if inside.startswith("..") else Path(os.path.normpath(self.project / inside))

    @property
    def source(self) -> Target:
        """Return the target whose source is read: the script of a workload, or the job's target."""
        if self.own is not None and self.own.script:
            return Target(kind="script", value=self.own.script)
        return self.target


#: First keys of a file: in the schema, and where all keys are listed.
_FIRST = ("name", "target", "module", "args", "on", "gpus", "nodes")


class ConfigFile(Requests):
    """seatrial.toml: what to run, on which GPUs, with which limits, and what a good run is."""

    name: keys.NewName | None = Field(default=None, description="Name of the run.")
    target: str | None = Field(default=None, description="Script (a path) or recipe to run.")
    module: str | None = Field(default=None, description="Module to run, as for python -m.")
    args: Listed[keys.Word] = Field(default=(), description="Arguments of the target; replaced by arguments after --.")
    nodes: Nodes = Field(default=1, description="Number of nodes (machines or pods), or a list of host names.")
    sweep: SweepTable = Field(default_factory=SweepTable, description="What seatrial sweep searches.")


def file_keys() -> list[str]:
    """Return the keys outside of tables, and the tables, in the order in which people write them."""
    return list(dict.fromkeys([*_FIRST, *typed_keys(ConfigFile)]))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of seatrial.toml, for editors; ``seatrial init --schema`` prints it."""
    schema = ConfigFile.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {key: schema["properties"][key] for key in file_keys()},
        "title": "seatrial.toml",
    }

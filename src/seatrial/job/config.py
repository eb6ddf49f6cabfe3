"""ConfigFile: seatrial.toml as people write it. Flags have the same shape, so the same model reads both.

    name = "baseline"
    target = "train.py"              # or module = "package.train"; a recipe's name works too
    args = ["--epochs", "5"]
    on = "docker"                    # auto, local, docker, podman, k8s
    gpus = 2                         # auto, none, all, 2, "device=0,2", "GPU-…": the grammar of --gpus
    data = "./data"                  # mounted read-only at /data; "./data:rw" opens it
    models = "./models"
    memory = "16GB"
    shm_size = "4g"
    gpu_memory = "4GB"
    timeout = "2h"
    secrets = ["HF_TOKEN"]           # names of variables of yours; their values are shown nowhere

    [env]
    OMP_NUM_THREADS = 4

    [image]
    base = "python:3.11-slim-bookworm"
    system_packages = ["gcc"]

    [criteria]
    mean_utilization = 70            # percent; false: not judged
    finished_within = "10m"
    max_image_size = "4GB"
    model = "models/*.pth"
    test_accuracy = ">= 0.985"       # any other name: a metric the script reports, and its condition

    [watch]
    hang_after = "10m"               # no step, no output, nothing computed
    webhook = "https://chat.example.org/hook"   # or command = "…"; for what the watchdog finds

In pyproject.toml the same keys stand under ``[tool.seatrial]``. Relative paths count from the file's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationInfo
from pydantic import WithJsonSchema as Schema

from seatrial.errors import UsageError
from seatrial.job import condition, units
from seatrial.job.cluster_config import KubernetesTable, Nodes, Restarts
from seatrial.job.gpus import GpuRequest
from seatrial.job.model import DataMount, Flavour, Launcher, SlimLevel
from seatrial.system.shown import shown

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
#: Names of images: what begins with a dash would be an option of the engine's.
_IMAGE = r"[A-Za-z0-9\[][A-Za-z0-9._/:@+\[\]-]*"
#: Source: Debian Policy, 5.6.1 and 5.6.12; with an architecture and a version as apt-get takes them.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?"
#: It stands in a command of the build.
_URL = r"[a-z]+://[^\s\"'`$;&|<>\\]+"
#: docs.docker.com/reference/cli/docker/container/run, --publish.
_PORTS = re.compile(
    r"((([0-9]{1,3}\.){3}[0-9]{1,3}|\[[0-9a-fA-F:.]+\]):(?=.*:|[0-9]))?"
    r"(?P<ports>:?[0-9]{1,5}(-[0-9]{1,5})?(:[0-9]{1,5}(-[0-9]{1,5})?)?)(/(tcp|udp|sctp))?"
)
#: Container names: docs.docker.com/reference/cli/docker/container/run; 63 because it is the hostname too (RFC 1123).
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


def _reads(parse: Callable[[str], Any], what: str) -> Callable[[Any], Any]:
    """A validator from one of our parsers; its UsageError becomes pydantic's ValueError. Numbers are read as text."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"expected {what}, got {shown(value)}")
        try:
            return parse(str(value))
        except UsageError as error:
            raise ValueError(error.message) from None

    return read


_size = _reads(units.parse_bytes, 'a size such as "8GB"')
_duration = _reads(units.parse_seconds, 'a duration such as "10m"')
_gpus = _reads(lambda text: str(GpuRequest.parse(text)), 'a GPU request such as 2 or "device=0,2"')


def _number(value: Any) -> float:
    """A number, or one as text: flags are text."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        number = float(value)
        if not 0 < number < float("inf"):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"expected a number above zero, got {shown(value)}") from None
    return number


def _port(value: Any) -> Any:
    """``[[ADDRESS:][HOST]:]CONTAINER[/PROTOCOL]`` with ports or ranges of them, as Docker reads it."""
    if not isinstance(value, str):
        return value  # not text: pydantic says so
    match = _PORTS.fullmatch(value)
    if match is None or not all(0 < int(number) <= 65535 for number in re.findall("[0-9]+", match["ports"])):
        raise ValueError(f"expected HOST:CONTAINER ports from 1 to 65535, such as 8080:80, got {value[:80]!r}")
    return match[0]


def _percent(value: Any) -> float | None:
    if value is False:
        return None
    try:
        number = _number(value)
        if number > 100:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"expected a percentage above 0 up to 100, or false to skip the check; got {shown(value)}"
        ) from None
    return number


def _or_false(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is False else read(value)


def _matching(pattern: str, what: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"expected {what}, got {shown(value)}")
        return value

    return check


def _path(value: Any, info: ValidationInfo) -> Path:
    """An absolute path. Relative ones count from the folder in the validation context."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(f"expected a path, got {shown(value)}")
    path = Path(value)
    if path.parts[:1] == ("~",):
        path = Path(os.path.expanduser("~")).joinpath(*path.parts[1:])  # noqa: PTH111  home() raises where there is none
    assert info.context is not None
    path = info.context["base"] / path
    try:
        path.exists()
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered, a lone surrogate
        reason = getattr(error, "strerror", None) or "not a file name"
        raise ValueError(f"{shown(value)} cannot be used as a path: {reason}") from None
    return Path(path)


def _folder(*, read_only: bool) -> Callable[[Any, ValidationInfo], DataMount]:
    """A validator of ``DIR``, ``DIR:ro`` and ``DIR:rw``; ``read_only`` is what the first means."""

    def read(value: Any, info: ValidationInfo) -> DataMount:
        if isinstance(value, str) and value.endswith((":ro", ":rw")):
            return DataMount(source=_path(value[:-3], info), read_only=value.endswith(":ro"))
        return DataMount(source=_path(value, info), read_only=read_only)

    return read


def _mount(value: Any, info: ValidationInfo) -> str:
    """``SOURCE:TARGET[:ro|rw]`` with the source made absolute."""
    parts = value.split(":") if isinstance(value, str) else []
    if len(parts) not in (2, 3) or not parts[1].startswith("/") or parts[2:] not in ([], ["ro"], ["rw"]):
        raise ValueError(f"expected SOURCE:/TARGET[:ro|rw], got {shown(value)}")
    return ":".join([str(_path(parts[0], info)), *parts[1:]])


def _folder_or_url(value: Any, info: ValidationInfo) -> str:
    return value if isinstance(value, str) and "://" in value else str(_path(value, info))


def _variables(value: Any) -> Any:
    """Numbers become text; true and false are refused, since nobody agrees how a shell spells them."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for key, item in value.items()
    }


def _list_of_one(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_TEXT: dict[str, Any] = {"type": "string"}
_OR_FALSE = {"const": False}


def _text(*examples: str) -> dict[str, Any]:
    return {**_TEXT, "examples": list(examples)}


Size = Annotated[int, BeforeValidator(_size), Schema(_text("512m", "8GB", "2GiB"))]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    Schema({"anyOf": [_text("30s", "1h30m"), {"type": "number", "exclusiveMinimum": 0}]}),
]
Positive = Annotated[float, BeforeValidator(_number), Schema({"type": "number", "exclusiveMinimum": 0})]
Gpus = Annotated[
    str,
    BeforeValidator(_gpus),
    Schema({"anyOf": [_text("auto", "none", "all", "device=0,2"), {"type": "integer", "minimum": 1}]}),
]
PathLike = Annotated[Path, BeforeValidator(_path), Schema(_TEXT)]
Data = Annotated[DataMount, BeforeValidator(_folder(read_only=True)), Schema(_text("./data", "./data:rw"))]
Models = Annotated[DataMount, BeforeValidator(_folder(read_only=False)), Schema(_text("./models"))]
Mount = Annotated[str, BeforeValidator(_mount), Schema(_text("./cache:/cache:rw"))]
FolderOrUrl = Annotated[str, BeforeValidator(_folder_or_url), Schema(_TEXT)]
Port = Annotated[str, BeforeValidator(_port), Schema(_text("8080:80", "127.0.0.1:8888:8888"))]
Name = Annotated[
    str,
    BeforeValidator(_matching(_NAME, "letters, digits, . _ -, at most 63")),
    Schema({**_TEXT, "pattern": f"^{_NAME}$"}),
]
Variable = Annotated[
    str, BeforeValidator(_matching(_VARIABLE, "a variable's name")), Schema({**_TEXT, "pattern": f"^{_VARIABLE}$"})
]
Variables = Annotated[
    dict[Variable, str],
    BeforeValidator(_variables),
    Schema({"type": "object", "additionalProperties": {"type": ["string", "number"]}}),
]
Condition = Annotated[
    str,
    BeforeValidator(_matching(condition.PATTERN, 'a condition such as ">= 0.985"')),
    Schema({**_TEXT, "pattern": f"^{condition.PATTERN}$"}),
]
Webhook = Annotated[
    str,
    BeforeValidator(_matching(r"https?://[^\s/]+\S*", "an http or https URL")),
    Schema({**_TEXT, "pattern": "^https?://"}),
]
Image = Annotated[
    str, AfterValidator(_matching(_IMAGE, "an image's name")), Schema({**_TEXT, "pattern": f"^{_IMAGE}$"})
]
DebianPackage = Annotated[
    str, AfterValidator(_matching(_PACKAGE, "a Debian package's name")), Schema({**_TEXT, "pattern": f"^{_PACKAGE}$"})
]
Mirror = Annotated[str, AfterValidator(_matching(_URL, "a URL")), Schema({**_TEXT, "pattern": f"^{_URL}$"})]
Line = Annotated[
    str, AfterValidator(_matching(r"[^\x00-\x1f\x7f]+", "one line of text")), Schema({**_TEXT, "minLength": 1})
]
Globs = Annotated[
    list[str],
    BeforeValidator(_list_of_one),
    Schema({"anyOf": [_text("models/*.pth"), {"type": "array", "items": _TEXT}]}),
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ImageTable(_Table):
    """How the image is made."""

    base: Image = Field(default="python:3.11-slim-bookworm", description="Image that the build starts from.")
    ready: Image | None = Field(default=None, description="An existing image to run as is; nothing is built.")
    python: str | None = Field(
        default=None, description="Python interpreter in an existing image, if not in a standard location."
    )
    ca_bundle: PathLike | None = Field(
        default=None, description="PEM file of extra certificate authorities for the build."
    )
    index_url: Line | None = Field(default=None, description="Package index for pip; kept out of the image.")
    find_links: FolderOrUrl | None = Field(default=None, description="Folder or URL of wheels for pip.")
    build_network: Literal["default", "host", "none"] = Field(default="default", description="Network of the build.")
    requirements: list[Line] = Field(default=[], description="Additional pip packages.")
    system_packages: list[DebianPackage] = Field(default=[], description="Debian packages needed at run time.")
    target: str | None = Field(default=None, description="Machine to build for: h100, or driver=535.129,gpu=A4000.")
    flavour: Flavour | None = Field(default=None, description="Kind of nvidia/cuda base; slim Python by default.")
    torch_index: Mirror | None = Field(default=None, description="Mirror of https://download.pytorch.org/whl.")
    slim: SlimLevel = Field(default="none", description="How far to slim the image: docs/images.md.")
    max_size: Size | None = Field(default=None, description="Largest image that seatrial build accepts, on disk.")
    max_compressed: Size | None = Field(default=None, description="Largest image, as compressed layers.")


class CriteriaTable(_Table):
    """Criteria for a good run. Any other key is a metric that the script reports, its value a condition."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Condition] = Field(init=False)  # types every other key

    mean_utilization: Annotated[
        float | None,
        BeforeValidator(_percent),
        Schema({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 100}, _OR_FALSE]}),
    ] = Field(default=70.0, description="Minimum mean GPU utilisation in percent; false: not checked.")
    finished_within: Annotated[
        float | None,
        BeforeValidator(_or_false(_duration)),
        Schema({"anyOf": [_text("10m"), {"type": "number"}, _OR_FALSE]}),
    ] = Field(default=None, description="Maximum run time; false: not checked.")
    max_image_size: Annotated[
        int | None, BeforeValidator(_or_false(_size)), Schema({"anyOf": [_text("4GB"), _OR_FALSE]})
    ] = Field(default=4_000_000_000, description="Maximum image size; false: not checked.")
    model: Globs = Field(default=[], description="Globs, one of which must match a new file that is not empty.")


class WatchTable(_Table):
    """What the watchdog looks for while the run goes on, and whom it tells."""

    hang_after: Annotated[
        float | None,
        BeforeValidator(_or_false(_duration)),
        Schema({"anyOf": [_text("5m"), {"type": "number"}, _OR_FALSE]}),
    ] = Field(default=300.0, description="Inactivity after which a run is reported as hung; false: never.")
    command: str | None = Field(default=None, description="Shell command run in the container for each finding.")
    webhook: Webhook | None = Field(default=None, description="URL that each finding is posted to.")


class ConfigFile(_Table):
    """seatrial.toml: what to run, on which GPUs, with which limits, and what a good run is."""

    name: Name | None = Field(default=None, description="Name of the run.")
    target: str | None = Field(default=None, description="Script (a path) or recipe to run.")
    module: str | None = Field(default=None, description="Module to run, as for python -m.")
    args: list[str] = Field(default=[], description="Arguments of the target; replaced by arguments after --.")
    on: str = Field(default="auto", description="Where to run: auto, docker, podman, local or k8s.")
    gpus: Gpus = Field(default="auto", description="GPU request; a whole number is a count.")
    nodes: Nodes = Field(default=1, description="Number of nodes (machines or pods), or a list of host names.")
    restarts: Restarts | None = Field(
        default=None, description="Maximum restarts of failed ranks; 3 if they can resume from checkpoints, else 0."
    )
    launcher: Launcher = Field(
        default="auto", description="One process per GPU, or one for all; auto reads the script."
    )
    data: Data | None = Field(default=None, description="Folder mounted read-only at /data; DIR:rw for read-write.")
    models: Models | None = Field(default=None, description="Folder mounted at /models.")
    mounts: list[Mount] = Field(default=[], description="Additional mounts, SOURCE:TARGET[:ro|rw].")
    env: Variables = Field(default={}, description="Variables for the target.")
    env_files: list[PathLike] = Field(default=[], description="Files of NAME=value lines; env wins over them.")
    secrets: list[Variable] = Field(
        default=[], description="Host variables passed to the target and hidden in every log."
    )
    publish: list[Port] = Field(default=[], description="Ports, as for docker run --publish.")
    network: str | None = Field(default=None, description="Network, as for docker run --network.")
    workdir: str | None = Field(default=None, description="Working directory in the container; the project by default.")
    devices: list[str] = Field(default=[], description="Additional devices, as for docker run --device.")
    ulimits: list[str] = Field(default=[], description="Limits, as for docker run --ulimit.")
    cpus: Positive | None = Field(default=None, description="Cores.")
    memory: Size | None = Field(default=None, description="Memory limit of the container.")
    shm_size: Size | None = Field(default=None, description="Size of /dev/shm; 2 GiB per GPU by default.")
    gpu_memory: Size | None = Field(default=None, description="GPU memory limit for torch and TensorFlow scripts.")
    timeout: Duration | None = Field(default=None, description="Time limit, after which the target is stopped.")
    grace: Duration = Field(default=30.0, description="Time between SIGTERM and SIGKILL.")
    writable: StrictBool = Field(default=False, description="The container's root filesystem is writable.")
    strict: StrictBool = Field(default=False, description="Exit with 4 if criteria are unmet.")
    resume: str | None = Field(default=None, description="ID of the run to resume from.")
    with_names: StrictBool = Field(
        default=False, description="Include user name, host name and home folder in receipts."
    )
    image: ImageTable = Field(default_factory=ImageTable, description="How the image is made.")
    criteria: CriteriaTable = Field(default_factory=CriteriaTable, description="Criteria for a good run.")
    watch: WatchTable = Field(default_factory=WatchTable, description="What the watchdog checks during the run.")
    kubernetes: KubernetesTable = Field(default_factory=KubernetesTable, description="Kubernetes settings.")


def json_schema() -> dict[str, Any]:
    """JSON Schema of seatrial.toml, for editors; kept in docs/reference/seatrial.schema.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ConfigFile.model_json_schema(mode="validation"),
        "title": "seatrial.toml",
    }

"""What an engine says that does not start a container, apart from GPUs. Special ones stand before general ones.

The texts of Docker 20.10.24 and Podman 4.3.1 are kept in tests/recorded/engine-errors.json.
"""

from seatrial.findings.commands import INSTALL_DOCKER
from seatrial.findings.known import Known

_RECORDED = "seatrial: tests/recorded/engine-errors.json"

START = (
    Known(
        id="runtime-not-there",
        title="{Engine} has no runtime named {runtime}",
        symptoms=(
            "Unknown runtime specified {runtime}",
            "unknown or invalid runtime name: {runtime}",
            'default OCI runtime "{runtime}" not found',
        ),
        cause="The engine's configuration does not name it, or was edited without restarting the engine",
        fix="{engine} info   # lists the runtimes",
        sources=(_RECORDED,),
    ),
    Known(
        id="limits-refused",
        title="{Engine} may not set the container's limits of open files and processes",
        symptoms=("error setting rlimit", "setrlimit `RLIMIT_{limit}`: Operation not permitted"),
        cause="The engine's own defaults are higher than this machine or this user may set",
        fix="seatrial run --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 …",
        sources=("containers/podman#18555", "containers/podman#24508", _RECORDED),
    ),
    Known(
        id="device-not-there",
        title="There is no device {device}",
        symptoms=('custom device "{device}": no such file', "stat /dev/{name}: no such file"),
        cause="Its driver is not loaded, or the name is wrong",
        fix="ls -l /dev",
        sources=(_RECORDED,),
    ),
    Known(
        id="container-name-in-use",
        title="A container named {name} already exists",
        symptoms=('container name "/{name}" is already in use', 'container name "{name}" is already in use'),
        cause="Another run has this name, or an earlier one left its container behind",
        fix="{engine} ps --all --filter name={name}",
        sources=(_RECORDED,),
    ),
    Known(
        id="host-port-in-use",
        title="Port {port} on this machine is in use",
        symptoms=(
            "Bind for {address}:{port} failed: port is already allocated",
            "listen tcp {address}:{port}: bind: address already in use",
            "listen tcp4 {address}:{port}: bind: address already in use",
        ),
        cause="Another container or program is listening on it",
        fix="ss -ltnp 'sport = :{port}'",
        sources=(_RECORDED,),
    ),
    Known(
        id="mount-not-there",
        title="The folder to mount does not exist: {path}",
        symptoms=("bind source path does not exist: {path…}", "statfs {path…}: no such file"),
        cause="It is not on the engine's machine",
        fix="ls -ld {path}",
        sources=(_RECORDED,),
    ),
    Known(
        id="mount-not-shared",
        title="{Engine} is not allowed to mount this folder",
        symptoms=("mounts denied", "is not shared from the host"),
        cause="Docker Desktop mounts only the folders named in Settings, Resources, File sharing",
        fix="docker context use default",
        sources=("https://docs.docker.com/desktop/troubleshoot-and-support/troubleshoot/topics/",),
    ),
    Known(
        id="mount-hidden-from-snap",
        title="{Engine} cannot see {path}",
        symptoms=("error while creating mount source path '{path…}'",),
        cause="Docker from a snap cannot read outside the home folder",
        fix="sudo snap remove docker && " + INSTALL_DOCKER,
        sources=("canonical/docker-snap#180",),
    ),
    Known(
        id="image-without-python",
        title="The image {base} has no python3",
        symptoms=(
            "python3: not found",
            "python3: command not found",
            'exec: "python3": executable file not found',
        ),
        cause="It is cut down, or its Python has another name; seatrial needs Python 3.8 or later in it",
        fix='in seatrial.toml: [image] system_packages = ["python3", "python3-venv"], or a base with Python',
        sources=("seatrial: tests/recorded/images",),
    ),
    Known(
        id="program-not-there",
        title="The image cannot run {program}",
        symptoms=(
            'exec: "{program}": executable file not found',
            'exec: "{program}": stat …no such file',
            'exec: "{program}": permission denied',
        ),
        cause="The image has no such program, or it may not be executed",
        fix="{engine} run --rm -it --entrypoint sh <image>   # and look for it there",
        sources=(_RECORDED,),
    ),
    Known(
        id="network-not-there",
        title="{Engine} has no network named {network}",
        symptoms=(
            "network with name or ID {network}: network not found",
            "daemon: network {network} not found",
            "container networking: network {network} not found",
        ),
        cause="It was removed, or its name is misspelled",
        fix="{engine} network ls",
        sources=(_RECORDED,),
    ),
    Known(
        id="image-not-there",
        title="Image {image} is not in {Engine}'s store",
        symptoms=("No such image: {image}", "Error: {image}: image not known", "inspecting object: {image}: image not"),
        cause="It was never pulled or built here, or was removed",
        fix="{engine} pull {image}",
        sources=(_RECORDED,),
    ),
)

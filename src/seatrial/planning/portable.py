"""A plan in other forms: docker run, Compose, a devcontainer."""

from __future__ import annotations

import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.backends.containers.mounts import CACHE
from seatrial.backends.containers.run_options import mount_option
from seatrial.backends.kubernetes.manifests import as_yaml
from seatrial.errors import DiskError, UsageError, os_errors
from seatrial.images.build.build import context_of
from seatrial.images.dockerfile.render import VENV_PYTHON
from seatrial.job.in_container import CONTAINER_HOME, CONTAINER_PROJECT
from seatrial.job.plan import ContainerPlan, ImagePlan, Mount, Plan
from seatrial.system import nofollow
from seatrial.system.files import in_the_way
from seatrial.system.text import as_typed

#: Mounts and variables of ours; without the agent nothing reads them.
_OURS = "/seatrial/"

FOLDER = ".devcontainer"
#: Editors put their server into the HOME of a user that has one; it takes the number of the user who opens it.
_USER = "dev"
_USER_LINES = f"""
# A user with a home, for the editor's server. The editor gives it the number of the user who opens the project.
USER root
RUN useradd --create-home --non-unique --uid 1000 --shell /bin/bash {_USER}
USER {_USER}
"""


def as_docker(plan: Plan) -> str:
    """Write one ``docker run`` command, an option a line. Raises UsageError for a plan without a container."""
    container, image = _container(plan), _image(plan)
    words: list[list[str]] = [["docker", "run", "--rm", "--init"]]
    for flag, values in (
        ("--user", [container.user] if container.user else []),
        ("--group-add", list(container.groups)),
        ("--workdir", [container.workdir]),
        ("--gpus", [container.gpus_flag] if container.gpus_flag else []),
        ("--runtime", [container.runtime] if container.runtime else []),
        ("--device", list(container.devices)),
        ("--tmpfs", _tmpfs(plan, container)),
        ("--mount", [mount_option(each) for each in _mounts(plan, container)]),
        ("--env", [f"{name}={value}" for name, value in _env(plan, container).items()]),
        ("--env", plan.job.secrets),
        ("--shm-size", [str(container.shm_bytes)]),
        ("--cpus", [f"{container.cpus:g}"] if container.cpus else []),
        ("--memory", [str(container.memory_bytes)] if container.memory_bytes else []),
        ("--ulimit", list(container.ulimits)),
        ("--network", [container.network] if container.network else []),
        ("--publish", list(container.publish)),
        ("--cap-drop", ["ALL"]),
        ("--cap-add", list(container.capabilities)),
        ("--security-opt", ["no-new-privileges", *container.security_opts]),
    ):
        words += [[flag, value] for value in values]
    words += [["--read-only"]] if container.read_only_root else []
    words += [["--entrypoint", ""]] if image.build else []
    words.append([image.tag, *_command(plan)])
    command = " \\\n  ".join(shlex.join(line) for line in words) + "\n"
    if _elsewhere(plan):
        project = next(each for each in container.mounts if each.target == CONTAINER_PROJECT)
        here = '"' + mount_option(project.changed(source=Path("$PWD"))) + '"'
        command = command.replace(shlex.quote(mount_option(project)), here)
    return _before(plan, None) + command


def as_compose(plan: Plan) -> str:
    """Write a Compose file with one service. Raises UsageError for a plan without a container."""
    recipe = _image(plan).plain_dockerfile if _elsewhere(plan) else None
    text = as_yaml([{"services": {"train": _service(plan, recipe)}}])
    return _before(plan, recipe) + "# docker compose up --abort-on-container-exit\n" + text


def _service(plan: Plan, recipe: str | None) -> dict[str, Any]:
    """Return the service; ``recipe``: the Dockerfile that Compose builds; None: the image is there."""
    container, image = _container(plan), _image(plan)
    elsewhere = _elsewhere(plan)
    service: dict[str, Any] = {
        "image": None if recipe else image.tag,
        "build": _build(recipe, image),
        "pull_policy": "never" if image.build and not recipe else None,
        "init": True,
        "command": [word.replace("$", "$$") for word in _command(plan)],
        "user": container.user,
        "group_add": list(container.groups),
        "working_dir": container.workdir,
        "environment": {name: value.replace("$", "$$") for name, value in _env(plan, container).items()}
        | dict.fromkeys(plan.job.secrets),
        "volumes": [
            {
                "type": "bind",
                # The file is in the project, whose path on another machine is unknown.
                "source": "." if elsewhere and each.target == CONTAINER_PROJECT else str(each.source),
                "target": each.target,
                "read_only": each.read_only,
            }
            for each in _mounts(plan, container)
        ],
        "tmpfs": _tmpfs(plan, container),
        "shm_size": container.shm_bytes,
        "cpus": container.cpus,
        "mem_limit": container.memory_bytes,
        "network_mode": container.network,
        "ports": list(container.publish),
        "runtime": container.runtime,
        "devices": list(container.devices),
        "cap_drop": ["ALL"],
        "cap_add": list(container.capabilities),
        "security_opt": ["no-new-privileges", *container.security_opts],
        "read_only": container.read_only_root,
    }
    if container.gpus_flag:
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu_reservation(container.gpus_flag)]}}}
    if container.ulimits:
        service["ulimits"] = dict(_ulimit(text) for text in container.ulimits)
    return {key: value for key, value in service.items() if value not in (None, [], {})}


def _elsewhere(plan: Plan) -> bool:
    """Return whether the plan is for a machine that is only described."""
    return plan.agent.gpu_mode == "required" and not plan.gpus


def _before(plan: Plan, recipe: str | None) -> str:
    """Return the steps before, as comments: building the image, which is in no registry, and copying it."""
    image = _image(plan)
    lines = ["# Downloads are in memory and gone at the end; to keep them, mount a folder at " + CACHE]
    if plan.agent.stand_ins:
        lines.append("# horovod is not in the image: only seatrial run has its stand-in")
    if image.build and not recipe:
        where = "first, on this machine" if _elsewhere(plan) else "first"
        lines.insert(0, f"# {where}: {_build_command(plan)}")
        if _elsewhere(plan):
            lines.insert(1, f"# then, to the other machine: docker save {image.tag} | ssh HOST docker load")
    return "\n".join(lines) + "\n"


def _build_command(plan: Plan) -> str:
    job = plan.job
    slim = job.image.slim if job.image.slim != "auto" else None
    wanted = [("--on", plan.backend), ("--target", job.image.target), ("--slim", slim)]
    options = [word for flag, value in wanted if value for word in (flag, value)]
    return f"seatrial build {shlex.join([*options, '--gpus', str(job.gpus)])} {plan.target_line}"


def _build(recipe: str | None, image: ImagePlan) -> dict[str, Any] | None:
    if recipe is None:
        return None
    network = {"network": image.network} if image.network != "default" else {}
    return {"context": ".", "dockerfile_inline": recipe.replace("$", "$$"), **network}


def gpu_reservation(gpus_flag: str) -> dict[str, Any]:
    """Translate Docker's ``--gpus`` into a reservation of Compose."""
    wanted: dict[str, Any] = {"count": int(gpus_flag) if gpus_flag.isdigit() else gpus_flag}
    if "=" in gpus_flag:
        wanted = {"device_ids": gpus_flag.strip('"').partition("=")[2].split(",")}
    return {"driver": "nvidia", **wanted, "capabilities": ["gpu"]}


def _command(plan: Plan) -> list[str]:
    """Return the target's command, under torchrun where the plan has it so."""
    agent = plan.agent
    argv = list(agent.argv)
    if agent.launcher != "torchrun" or agent.script is None:
        return argv
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={agent.processes}"]
    return [*argv[: agent.script], *torchrun, *argv[agent.script :]]


def _env(plan: Plan, container: ContainerPlan) -> dict[str, str]:
    env = {**container.env, **plan.agent.env}
    if plan.agent.python_path:
        env["PYTHONPATH"] = ":".join(filter(None, [env.get("PYTHONPATH"), *plan.agent.python_path]))
    return {name: text for name, text in sorted(env.items()) if not text.startswith(_OURS) and "SEATRIAL" not in name}


def _mounts(plan: Plan, container: ContainerPlan) -> list[Mount]:
    """Return the user's folders and the driver's files; nothing of ours, which may not be there."""
    theirs = (each for each in container.mounts if plan.run_id not in each.source.parts)
    return [each for each in theirs if not each.target.startswith((_OURS, CACHE))]


def _tmpfs(plan: Plan, container: ContainerPlan) -> list[str]:
    home = any(each.target == CONTAINER_HOME and plan.run_id in each.source.parts for each in container.mounts)
    own = [f"{each.target}:{each.options}" for each in container.tmpfs if not each.target.endswith("/.seatrial")]
    return [f"{CONTAINER_HOME}:exec,mode=1777", *own] if home else own


def _ulimit(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    soft, _, hard = value.partition(":")
    return name, {"soft": int(soft), "hard": int(hard)} if hard else int(soft)


def _container(plan: Plan) -> ContainerPlan:
    if plan.container is None:
        problem = f"This plan has no container: it runs on the backend {plan.backend}"
        raise UsageError(problem, run="seatrial plan … --on docker")
    return plan.container


def _image(plan: Plan) -> ImagePlan:
    _container(plan)  # a plan without one is refused for either format
    assert plan.image is not None, "a container has an image"
    return plan.image


def devcontainer(plan: Plan) -> dict[str, Any]:
    """Build the devcontainer.json of a plan with a container."""
    job, container, gpus = plan.job, plan.container, plan.job.gpus.kind
    assert container is not None
    build: dict[str, Any] = {"dockerfile": "Dockerfile", "context": "."}
    if job.image.build_network != "default":
        build["options"] = [f"--network={job.image.build_network}"]
    content: dict[str, Any] = {
        "name": job.project.name,
        "build": build,
        "workspaceMount": f"source=${{localWorkspaceFolder}},target={CONTAINER_PROJECT},type=bind",
        "workspaceFolder": CONTAINER_PROJECT,
        "mounts": [mount for mount in (_mount(plan, "data"), _mount(plan, "models")) if mount],
        "runArgs": [f"--shm-size={container.shm_bytes}"],
        "containerEnv": {
            **{f"SEATRIAL_{key.upper()}_DIR": f"/{key}" for key in ("data", "models") if _below(plan, key)},
            **{name: value for name, value in job.env.items() if name not in job.secrets},
        },
        "secrets": {name: {"description": "A variable that seatrial.toml passes on."} for name in job.secrets},
        "initializeCommand": ["mkdir", "-p", str(models)] if (models := _below(plan, "models")) else [],
        # Optional: a GPU is used where there is one.
        "hostRequirements": {} if gpus == "none" else {"gpu": "optional" if gpus == "auto" else True},
        "remoteUser": _USER,
        "customizations": {
            "vscode": {"extensions": ["ms-python.python"], "settings": {"python.defaultInterpreterPath": VENV_PYTHON}}
        },
    }
    return {key: value for key, value in content.items() if value not in ([], {})}


def write_devcontainer(plan: Plan) -> list[str]:
    """Write the folder, whole or not at all; its files. Raises DiskError, UsageError: it exists, or has no image."""
    folder = plan.job.project / FOLDER
    if os.path.lexists(folder):
        run = f"ls -a {as_typed(folder)}   # yours? move it away"
        raise UsageError(f"{FOLDER} is there already: nothing was written", run=run)
    if plan.image is None or plan.image.dockerfile is None or plan.container is None:
        what = "runs without a container" if plan.container is None else "has an image of its own"
        raise UsageError(f"No Dockerfile to use: this project {what}", run="${EDITOR:-vi} seatrial.toml   # backend")
    files = context_of(plan.image) | {
        "Dockerfile": f"{plan.image.dockerfile.rstrip()}\n{_USER_LINES}".encode(),
        "devcontainer.json": (json.dumps(devcontainer(plan), indent=2) + "\n").encode(),
    }
    with os_errors(DiskError, f"Cannot write {folder}", partial(in_the_way, folder.parent)):
        nofollow.write_tree(plan.job.project, FOLDER, files)
    return sorted(files)


def _mount(plan: Plan, key: str) -> str | None:
    """Return the mount of a project's folder, or None. A folder outside of it is on this machine alone."""
    if (below := _below(plan, key)) is None:
        return None
    options = ",readonly" if getattr(plan.job, key).read_only else ""
    return f"source=${{localWorkspaceFolder}}/{below.as_posix()},target=/{key},type=bind{options}"


def _below(plan: Plan, key: str) -> Path | None:
    """Return a data or models folder as a path in the project; None if it is not set or lies outside."""
    folder, root = getattr(plan.job, key), Path(os.path.realpath(plan.job.project))
    if folder is None or not Path(os.path.realpath(folder.source)).is_relative_to(root):
        return None
    return Path(os.path.realpath(folder.source)).relative_to(root)

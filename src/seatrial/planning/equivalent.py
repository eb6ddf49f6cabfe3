"""A plan in other people's words: a ``docker run`` command or a Compose file, without seatrial and so without proof.

What belongs to seatrial alone stays out: the agent, the run's folder, the receipt. HOME, which a run keeps there, is
a tmpfs. A plan for another machine (--target) names the project as the folder that it is started in.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from seatrial.backends.containers.home import CACHE
from seatrial.errors import UsageError
from seatrial.job.plan import CONTAINER_HOME, CONTAINER_PROJECT, ContainerPlan, ImagePlan, Mount, Plan
from seatrial.planning.secrets import targets_secrets

#: Mounts and variables of ours; without the agent nothing reads them.
_OURS = "/seatrial/"


class _Readable(yaml.SafeDumper):
    """Text of several lines as a block."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def as_docker(plan: Plan) -> str:
    """One ``docker run`` command, an option a line. Raises UsageError for a plan without a container."""
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
        ("--mount", [_as_option(each) for each in _mounts(plan, container)]),
        ("--env", [f"{name}={value}" for name, value in _env(plan, container).items()]),
        ("--env", targets_secrets(plan.job)),
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
        here = '"' + _as_option(project.model_copy(update={"source": Path("$PWD")})) + '"'
        command = command.replace(shlex.quote(_as_option(project)), here)
    return _before(plan, None) + command


def as_compose(plan: Plan) -> str:
    """A Compose file with one service. Raises UsageError for a plan without a container."""
    recipe = _image(plan).plain_dockerfile if _elsewhere(plan) else None
    text = as_yaml({"services": {"train": compose_service(plan, recipe)}})
    return _before(plan, recipe) + "# docker compose up --abort-on-container-exit\n" + text


def as_yaml(document: dict[str, Any]) -> str:
    """YAML as people write it: keys in their order, text of several lines as a block."""
    text: str = yaml.dump(document, Dumper=_Readable, sort_keys=False, width=120)
    return text


def compose_service(plan: Plan, recipe: str | None, *, here: bool = False) -> dict[str, Any]:
    """One service of a Compose file.

    Args:
        recipe: the Dockerfile to build, where the image is to be built by Compose; None: the image is there.
        here: the project is the folder that the file lies in.

    Raises UsageError for a plan without a container.
    """
    container, image = _container(plan), _image(plan)
    anywhere = here or _elsewhere(plan)
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
        | dict.fromkeys(targets_secrets(plan.job)),
        "volumes": [
            {
                "type": "bind",
                "source": _source(each, anywhere=anywhere),
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
        reservation = {"driver": "nvidia", **_devices(container.gpus_flag), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [reservation]}}}
    if container.ulimits:
        service["ulimits"] = dict(_ulimit(text) for text in container.ulimits)
    return {key: value for key, value in service.items() if value not in (None, [], {})}


def _elsewhere(plan: Plan) -> bool:
    """The plan is for a machine that is only described."""
    return plan.agent.gpu_mode == "required" and not plan.gpus


def _before(plan: Plan, recipe: str | None) -> str:
    """What must be done before, as comments: to build the image, which is in no registry, and to take it there."""
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


def _devices(gpus_flag: str) -> dict[str, Any]:
    """Docker's ``--gpus`` in Compose's words."""
    if gpus_flag == "all":
        return {"count": "all"}
    if gpus_flag.isdigit():
        return {"count": int(gpus_flag)}
    return {"device_ids": gpus_flag.strip('"').partition("=")[2].split(",")}


def _source(mount: Mount, *, anywhere: bool) -> str:
    """The Compose file lies in the project, whose path on another machine nobody knows."""
    return "." if anywhere and mount.target == CONTAINER_PROJECT else str(mount.source)


def _command(plan: Plan) -> list[str]:
    """The target, under torchrun where the plan has it so."""
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
    return {
        name: value for name, value in sorted(env.items()) if not value.startswith(_OURS) and "SEATRIAL" not in name
    }


def _mounts(plan: Plan, container: ContainerPlan) -> list[Mount]:
    """The user's folders and the driver's files; nothing of ours, which may not be there."""
    return [
        each
        for each in container.mounts
        if not each.target.startswith((_OURS, CACHE)) and plan.run_id not in each.source.parts
    ]


def _tmpfs(plan: Plan, container: ContainerPlan) -> list[str]:
    home = any(each.target == CONTAINER_HOME and plan.run_id in each.source.parts for each in container.mounts)
    own = [f"{each.target}:{each.options}" for each in container.tmpfs if not each.target.endswith("/.seatrial")]
    return [f"{CONTAINER_HOME}:exec,mode=1777", *own] if home else own


def _as_option(mount: Mount) -> str:
    return f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.read_only else "")


def _ulimit(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    soft, _, hard = value.partition(":")
    return name, {"soft": int(soft), "hard": int(hard)} if hard else int(soft)


def _container(plan: Plan) -> ContainerPlan:
    if plan.container is None:
        raise UsageError(
            f"This plan has no container: it runs on the backend {plan.backend}", run="seatrial plan … --on docker"
        )
    return plan.container


def _image(plan: Plan) -> ImagePlan:
    _container(plan)  # a plan without one is refused, whichever of the two is asked for first
    assert plan.image is not None, "a container has an image"
    return plan.image
